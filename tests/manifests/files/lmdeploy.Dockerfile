FROM openmmlab/lmdeploy:v0.16.0
CMD lmdeploy serve api_server internlm/internlm2-chat-7b --tp 2 \
    --session-len 32768 --cache-max-entry-count 0.5 --quant-policy 8
