#!/bin/bash
# The steps of DeepSpeed's tutorial "Zero Redundancy Optimizer", by its launcher: train, then its own zero_to_fp32.py.
set -e
deepspeed --num_gpus 2 --master_port "$MASTER_PORT" --enable_each_rank_log ds_logs cifar_deepspeed.py --stage 2 \
    > launcher.log 2>&1
sort ds_logs/*.log | grep -o 'loss.*'
python ds_checkpoint/zero_to_fp32.py ds_checkpoint fp32 -t last 2> /dev/null
