FROM ghcr.io/ggml-org/llama.cpp:server-cuda
COPY gemma-3-4b-q4_0.gguf /models/
ENV LLAMA_ARG_MODEL=/models/gemma-3-4b-q4_0.gguf \
    LLAMA_ARG_CTX_SIZE=65536 \
    LLAMA_ARG_N_GPU_LAYERS=99
CMD ["--parallel", "4", "--kv-unified"]
