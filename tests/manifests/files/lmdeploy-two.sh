#!/bin/bash
HF_HOME=/data/hf OMP_NUM_THREADS=1 \
lmdeploy serve api_server internlm/internlm2-chat-7b \
  --tp 1 --cache-max-entry-count 0.4 &>> first.log &
sleep 60
lmdeploy serve api_server internlm/internlm2-chat-7b --server-port 23334 \
  --cache-max-entry-count 0.2 --session-len 8192 &>> second.log &
wait
