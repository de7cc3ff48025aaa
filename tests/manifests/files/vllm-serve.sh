#!/usr/bin/env bash
# Starts the chat server on the two cards of this machine.
set -euo pipefail
MODEL="${MODEL:-meta-llama/Llama-3.1-8B-Instruct}"
TP=2
ARGS=(
  --tensor-parallel-size "$TP"
  --max-model-len 32k
  --gpu-memory-utilization=0.9
)
if [ -n "${EAGER:-}" ]; then
  ARGS+=(--enforce-eager)
fi
export CUDA_VISIBLE_DEVICES=0,1
exec vllm serve "$MODEL" "${ARGS[@]}" --kv-cache-dtype fp8
