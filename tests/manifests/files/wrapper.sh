#!/bin/bash
# writes what a unit starts later
sudo tee /usr/local/bin/serve-chat > /dev/null << 'EOT'
#!/usr/bin/env bash
exec vllm serve meta-llama/Llama-3.1-8B-Instruct \
  --max-model-len 16384 \
  --gpu-memory-utilization 0.85 \
  --served-model-name "$NAME"
EOT
sudo chmod +x /usr/local/bin/serve-chat
