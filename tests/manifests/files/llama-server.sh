#!/bin/bash
export LLAMA_ARG_CTX_SIZE=32768
LLAMA_ARG_N_PARALLEL=4 ./build/bin/llama-server \
  -m models/llama-3.1-8b-q4_k_m.gguf \
  -ngl 99 -fa on \
  -ctk q8_0 -ctv q8_0 \
  -b 2048 -ub 1024
