#!/bin/sh
MAX_LEN=$((8 * 1024))
nohup python3 -m vllm.entrypoints.openai.api_server \
  --model mistralai/Mistral-7B-Instruct-v0.3 \
  --max-model-len $MAX_LEN \
  --max-num-seqs 64 \
  --max_num_batched_tokens 8192 > vllm.log 2>&1 &
