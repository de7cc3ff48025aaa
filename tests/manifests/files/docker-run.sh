#!/bin/sh
docker run --rm --gpus '"device=0,1"' --shm-size 8g -p 8000:8000 \
  -e NUM_SHARD=2 \
  ghcr.io/huggingface/text-generation-inference:3.3.6 \
  --model-id mistralai/Mistral-7B-Instruct-v0.3 \
  --max-input-tokens 4096 --max-total-tokens 8192
