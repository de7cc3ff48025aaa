start_llm() {
  docker run -d --name llm --gpus all vllm/vllm-openai:v0.20.2 --model meta-llama/Llama-3.1-8B-Instruct --max-model-len 8192 --gpu-memory-utilization 0.5
}
start_emb() {
  docker run -d --name emb --gpus all vllm/vllm-openai:v0.20.2 --model meta-llama/Llama-3.2-3B-Instruct --max-model-len 8192 --gpu-memory-utilization 0.4
}
start_llm
while ! curl -s localhost:8000/health; do sleep 5; done
start_emb
