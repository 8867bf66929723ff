#!/bin/bash
# To the shape of accelerate, examples/slurm: one script a node, which launches twice; the second goes on.
set -e
run() {
    accelerate launch --multi_gpu --num_machines "$NNODES" --num_processes "$NNODES" --machine_rank "$NODE_RANK" \
        --main_process_ip "$MASTER_ADDR" --main_process_port "$MASTER_PORT" complete_cv.py "$@"
}
run --epochs 1 --checkpointing_steps epoch
run --epochs 2 --resume_from_checkpoint out/epoch_0
