"""Out-of-memory texts of every wording, with figures of our own."""

from __future__ import annotations

__all__ = ["SAMPLES"]

SAMPLES = {
    "1.0": (
        "RuntimeError: CUDA out of memory. Tried to allocate 50.00 MiB (GPU 0; 8.00 GiB total"
        " capacity; 7.00 GiB already allocated; 30.00 MiB free; 40.00 MiB cached)"
    ),
    "1.4": (
        "RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB (GPU 1; 16.00 GiB total"
        " capacity; 10.00 GiB already allocated; 1.00 GiB free; 13.50 GiB reserved in total by"
        " PyTorch)"
    ),
    "1.10": (
        "RuntimeError: CUDA out of memory. Tried to allocate 6.00 GiB (GPU 0; 16.00 GiB total"
        " capacity; 10.00 GiB already allocated; 1.00 GiB free; 13.50 GiB reserved in total by"
        " PyTorch) If reserved memory is >> allocated memory try setting max_split_size_mb to avoid"
        " fragmentation.  See documentation for Memory Management and PYTORCH_CUDA_ALLOC_CONF"
    ),
    "2.1": (
        "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 3.00 GiB. GPU 2 has a"
        " total capacty of 24.00 GiB of which 1.00 GiB is free. Process 77 has 9.00 GiB memory in"
        " use. Including non-PyTorch memory, this process has 14.00 GiB memory in use. Of the"
        " allocated memory 13.00 GiB is allocated by PyTorch, and 500.00 MiB is reserved by PyTorch"
        " but unallocated. If reserved but unallocated memory is large try setting"
        " max_split_size_mb to avoid fragmentation."
    ),
    "2.2": (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.00 GiB. GPU 0 has a total"
        " capacity of 80.00 GiB of which 800.00 MiB is free. Including non-PyTorch memory, this"
        " process has 79.00 GiB memory in use. Of the allocated memory 77.00 GiB is allocated by"
        " PyTorch, with 64.00 MiB allocated in private pools (e.g., CUDA Graphs), and 900.00 MiB is"
        " reserved by PyTorch but unallocated. If reserved but unallocated memory is large try"
        " setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation."
    ),
    "2.9": (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 90.00 GiB. GPU 0 has a total"
        " capacity of 80.00 GiB of which 70.00 GiB is free. Including non-PyTorch memory, this"
        " process has 9.00 GiB memory in use. Of the allocated memory 8.00 GiB is allocated by"
        " PyTorch, and 200.00 MiB is reserved by PyTorch but unallocated. If reserved but"
        " unallocated memory is large try setting PYTORCH_ALLOC_CONF=expandable_segments:True to"
        " avoid fragmentation."
    ),
    "fraction": (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 4.00 GiB. GPU 0 has a total"
        " capacity of 80.00 GiB of which 50.00 GiB is free. Including non-PyTorch memory, this"
        " process has 29.00 GiB memory in use. 30.00 GiB allowed; Of the allocated memory 27.00 GiB"
        " is allocated by PyTorch, and 512.00 MiB is reserved by PyTorch but unallocated."
    ),
    "windows": (
        "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 64.00 MiB. GPU 0 has a"
        " total capacty of 8.00 GiB of which 0 bytes is free. Of the allocated memory 12.00 GiB is"
        " allocated by PyTorch, and 20.00 MiB is reserved by PyTorch but unallocated."
    ),
    "no number": (
        "CUDA out of memory. Tried to allocate 2.00 GiB. GPU  has a total capacity of 40.00 GiB of"
        " which 1.50 GiB is free. Process 4711 has 38.00 GiB memory in use. Of the allocated memory"
        " 37.00 GiB is allocated by PyTorch, and 100.00 MiB is reserved by PyTorch but unallocated."
    ),
    "hip": (
        "torch.OutOfMemoryError: HIP out of memory. Tried to allocate 1.00 GiB. GPU 0 has a total"
        " capacity of 64.00 GiB of which 512.00 MiB is free. Of the allocated memory 60.00 GiB is"
        " allocated by PyTorch, and 2.00 GiB is reserved by PyTorch but unallocated."
    ),
    "npu": (
        "RuntimeError: NPU out of memory. Tried to allocate 1.00 GiB (NPU 3; 64.00 GiB total"
        " capacity; 60.00 GiB already allocated; 60.10 GiB current active; 300.00 MiB free; 62.00"
        " GiB reserved in total by PyTorch) If reserved memory is >> allocated memory try setting"
        " max_split_size_mb to avoid fragmentation."
    ),
    "xpu": (
        "torch.OutOfMemoryError: XPU out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total"
        " capacity of 16.00 GiB. Of the allocated memory 1.00 GiB is allocated by PyTorch, and"
        " 100.00 MiB is reserved by PyTorch but unallocated. Please use `empty_cache` to release"
        " all unoccupied cached memory."
    ),
    "mps": (
        "RuntimeError: MPS backend out of memory (MPS allocated: 10.00 GiB, other allocations:"
        " 512.00 MiB, max allowed: 11.00 GiB). Tried to allocate 1.00 GiB on shared pool. Use"
        " PYTORCH_MPS_HIGH_WATERMARK_RATIO=0.0 to disable upper limit for memory allocations."
    ),
    "vllm": (
        "ValueError: To serve at least one request with the models's max seq len (65536), (8.00 GiB"
        " KV cache is needed, which is larger than the available KV cache memory (5.50 GiB). Based"
        " on the available memory, the estimated maximum model length is 45056."
    ),
    "vllm start": (
        "ValueError: Free memory on device (4.00/24.00 GiB) on startup is less than desired GPU"
        " memory utilization (0.9, 21.60 GiB). Decrease GPU memory utilization or reduce GPU memory"
        " used by other processes."
    ),
    "ggml compute": (
        "llama_context: KV self size  =  512.00 MiB\n"
        "ggml_backend_cuda_buffer_type_alloc_buffer: allocating 4096.00 MiB on device 1: cudaMalloc"
        " failed: out of memory\n"
        "ggml_gallocr_reserve_n: failed to allocate CUDA1 buffer of size 4294967296\n"
        "graph_reserve: failed to allocate compute buffers\n"
    ),
    "ggml weights": (
        "using device CUDA0 (A Card) - 7000 MiB free\n"
        "ggml_backend_cuda_buffer_type_alloc_buffer: allocating 9000.00 MiB on device 0: cudaMalloc"
        " failed: out of memory\n"
        "alloc_tensor_range: failed to allocate CUDA0 buffer of size 9437184000\n"
        "llama_model_load: error loading model: unable to allocate CUDA0 buffer\n"
    ),
    "ggml cache": (
        "ggml_backend_cuda_buffer_type_alloc_buffer: allocating 3000.00 MiB on device 0: cudaMalloc"
        " failed: out of memory\n"
        "alloc_tensor_range: failed to allocate CUDA0 buffer of size 3145728000\n"
        "llama_kv_cache_init: failed to allocate buffer for kv cache\n"
    ),
    "vulkan": "ggml_vulkan: Device memory allocation of size 2147483648 failed.",
    "xla": (
        "jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to"
        " allocate 6442450944 bytes."
    ),
    "xla holes": (
        "RuntimeError: RESOURCE_EXHAUSTED: Attempting to allocate 40.00M. That was not possible."
        " There are 60.00M free. Due to fragmentation, the largest contiguous region of free memory"
        " is 30.00M.; (0x0x0_HBM0)"
    ),
    "xla short": (
        "RESOURCE_EXHAUSTED: Error allocating device buffer: Attempting to allocate 4.00G. That was"
        " not possible. There are 2.00G free.; (0x0x0_HBM0)"
    ),
    "xla program": (
        "RESOURCE_EXHAUSTED: XLA:TPU compile permanent error. Ran out of memory in memory space"
        " hbm. Used 20.00G of 16.00G hbm. Exceeded hbm capacity by 4.00G."
    ),
    "bfc": (
        "W bfc_allocator.cc:479] Allocator (GPU_0_bfc) ran out of memory trying to allocate 1.50GiB"
        " (rounded to 1610612736)requested by op MatMul\n"
        "Stats: \nLimit:                      8589934592\nInUse:                      6442450944\n"
    ),
    "bfc shape": (
        "ResourceExhaustedError: OOM when allocating tensor with shape[64,1024,1024] and type half"
        " on /job:localhost/replica:0 by allocator GPU_0_bfc"
    ),
    "headroom": (
        "400 MiB asked with 700 MiB of headroom left: 800 MiB of it were split blocks (card free"
        " 300); 800.00 MiB is reserved by PyTorch but unallocated"
    ),
    "driver": "RuntimeError: CUDA error: out of memory\nCUDA kernel errors might be reported",
}  # fmt: skip
