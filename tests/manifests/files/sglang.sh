#!/bin/bash
sglang serve --model-path Qwen/Qwen2.5-72B-Instruct \
  --tp-size 4 --context-length 32k \
  --mem-fraction-static 0.88 \
  --max-running-requests 128 \
  --kv-cache-dtype fp8_e5m2 --page-size 64
