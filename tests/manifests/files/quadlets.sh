#!/bin/bash
set -eu
AUDIO_MODEL=${AUDIO_MODEL:-mistralai/Mistral-7B-Instruct-v0.3}
mkdir -p /etc/containers/systemd
cat > /etc/containers/systemd/audio.container <<EOF
[Container]
Image=docker.io/vllm/vllm-openai:v0.33.0
AddDevice=nvidia.com/gpu=all
Exec=--model ${AUDIO_MODEL} --max-model-len 4096 \\
  --gpu-memory-utilization 0.40
EOF
cat > /etc/containers/systemd/agent.container <<EOF
[Container]
Image=docker.io/vllm/vllm-openai:v0.33.0
AddDevice=nvidia.com/gpu=all
Exec=--model meta-llama/Llama-3.2-3B-Instruct --max-model-len 8192 --gpu-memory-utilization 0.45
EOF
systemctl daemon-reload
