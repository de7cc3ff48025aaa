#!/bin/sh
podman run -d --device nvidia.com/gpu=0 --device nvidia.com/gpu=1 --entrypoint python3 \
  docker.io/vllm/vllm-openai:v0.33.0 \
  -m vllm.entrypoints.openai.api_server --model mistralai/Mistral-7B-Instruct-v0.3 \
  --tensor-parallel-size 2 --dtype bfloat16
