vllm serve meta-llama/Llama-3.1-8B-Instruct --max-model-len 8192 --gpu-memory-utilization 0.45 &
vllm serve meta-llama/Llama-3.2-3B-Instruct --max-model-len 8192 --gpu-memory-utilization 0.4 --port 8001 &
wait
