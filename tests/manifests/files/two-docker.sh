#!/bin/bash
tokens=8192
docker run -d --name sql --gpus '"device=1"' vllm/vllm-openai:v0.33.0 \
  --model meta-llama/Llama-3.2-3B-Instruct --max-model-len $tokens --gpu-memory-utilization 0.4
tokens=4096
docker run -d --name chat --gpus '"device=1"' vllm/vllm-openai:v0.33.0 \
  --model meta-llama/Llama-3.2-3B-Instruct --max-model-len $tokens --gpu-memory-utilization 0.4
