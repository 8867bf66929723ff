#!/usr/bin/env bash
# What a scheduler starts on each node. `fleet launch --per node sft.sh --epochs 8` starts it as Slurm or AIStation would.
#
# They say by variables which node of how many this is; all arguments are the training script's.
set -euo pipefail
cd "$(dirname "$0")"
echo "node ${NODE_RANK} of ${NNODES}: $(hostname), master ${MASTER_ADDR}:${MASTER_PORT}"
exec torchrun --nnodes "${NNODES}" --node_rank "${NODE_RANK}" --nproc_per_node "${NPROC_PER_NODE:-${GPUS_PER_NODE:-8}}" \
    --master_addr "${MASTER_ADDR}" --master_port "${MASTER_PORT}" digits.py "$@"
