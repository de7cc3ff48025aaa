#!/bin/bash
GPU_COUNT=4
cat > /etc/systemd/system/vllm.service << 'EOF'
[Service]
Environment=CUDA_VISIBLE_DEVICES=0
ExecStart=/usr/bin/python3 -m vllm.entrypoints.openai.api_server \
  --model mistralai/Mistral-7B-Instruct-v0.3 \
  --tensor-parallel-size ${GPU_COUNT} --max-model-len 16384
EOF
systemctl enable --now vllm
