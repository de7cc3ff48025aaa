FROM lmsysorg/sglang:v0.5.23
ENV MODEL_PATH=Qwen/Qwen2.5-72B-Instruct \
    TP_SIZE=8
EXPOSE 30000
CMD exec python3 -m sglang.launch_server --model-path "$MODEL_PATH" --tp-size ${TP_SIZE} \
    --mem-fraction-static 0.8 --max-running-requests 32 --chunked-prefill-size 8192
