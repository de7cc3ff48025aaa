"""A launcher as people write them for Modal."""

import os
import subprocess

import modal

MODEL = "meta-llama/Llama-3.1-8B-Instruct"
N_GPU = 2
FAST_BOOT = False
image = (
    modal.Image.debian_slim(python_version="3.12")
    .uv_pip_install("vllm==0.19.1", "huggingface_hub")
    .env({"VLLM_LOGGING_LEVEL": "DEBUG"})
)
app = modal.App("chat")


@app.function(image=image, gpu=f"L40S:{N_GPU}", scaledown_window=900)
@modal.web_server(port=8000)
def serve() -> None:
    cmd = ["vllm", "serve", MODEL, "--host", "0.0.0.0", "--port", str(8000)]
    cmd += ["--enforce-eager" if FAST_BOOT else "--no-enforce-eager"]
    cmd += ["--tensor-parallel-size", str(N_GPU)]
    cmd.extend(["--max-model-len", "32768"])
    if FAST_BOOT:
        cmd += ["--max-num-seqs", "8"]
    if os.environ.get("FP8"):
        cmd += ["--kv-cache-dtype", "fp8"]
    subprocess.Popen(" ".join(cmd), shell=True)
