#!/bin/bash
cat > /tmp/llm.yaml <<EOF
kv_cache_config:
  free_gpu_memory_fraction: 0.85
  enable_block_reuse: false
  dtype: fp8
max_num_tokens: 8192
EOF
trtllm-serve serve meta-llama/Llama-3.1-70B-Instruct \
  --tp_size 4 --max_seq_len 16384 --max_batch_size 32 \
  --extra_llm_api_options /tmp/llm.yaml
