ARG VERSION=v0.33.0
FROM vllm/vllm-openai:${VERSION}
ENV MAX_LEN=16384
ENTRYPOINT ["vllm", "serve"]
CMD ["meta-llama/Llama-3.1-8B-Instruct", "--max-model-len", "16384", "--enable-prefix-caching"]
