trtllm-serve deepseek-ai/DeepSeek-V3 --tp_size 8 --max_seq_len 8192 --config trtllm-mtp-extra.yaml
