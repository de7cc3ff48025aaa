import subprocess

import modal

N = 2
app = modal.App("chat")


@app.function(gpu=f"H100:{N}", image=modal.Image.debian_slim().uv_pip_install("vllm==0.20.2"))
def serve():
    cmd = ["vllm", "serve", "meta-llama/Llama-3.1-8B-Instruct", "--max-model-len", "8192"]
    cmd += ["--tensor-parallel-size", str(N)]
    subprocess.Popen(cmd)
