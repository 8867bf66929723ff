#!/bin/bash
# To the shape of Megatron-LM, examples/pretrain_gpt_distributed.sh, which is started on each node.
export CUDA_DEVICE_MAX_CONNECTIONS=1

GPUS_PER_NODE=${NPROC_PER_NODE:-2}
WORLD_SIZE=$(($GPUS_PER_NODE*$NNODES))

CHECKPOINT_PATH=${1:-checkpoints}
VOCAB_FILE="gpt2-vocab.json"
MERGE_FILE=gpt2-merges.txt
DATA_PATH="0.3 my-gpt2_text_document 0.7 other document"

DISTRIBUTED_ARGS="
    --nproc_per_node $GPUS_PER_NODE \
    --nnodes $NNODES \
    --node_rank $NODE_RANK \
    --master_addr $MASTER_ADDR \
    --master_port $MASTER_PORT
"

GPT_ARGS="
    --num-layers 2 \
    --hidden-size 32 \
    --num-attention-heads 4 \
    --seq-length 64 \
    --max-position-embeddings 64 \
    --micro-batch-size 2 \
    --global-batch-size 8 \
    --lr 0.00015 \
    --train-iters 6 \
    --lr-decay-iters 320000 \
    --lr-decay-style cosine \
    --min-lr 1.0e-5 \
    --weight-decay 1e-2 \
    --lr-warmup-fraction .01 \
    --clip-grad 1.0 \
    --tensor-model-parallel-size 2 \
    --adam-betas 0.9 0.95 \
    --fp16
"

echo "$0 starts ${GPUS_PER_NODE} of ${WORLD_SIZE} ranks as node ${NODE_RANK} of ${NNODES}"
# the ranks' lines come in no order here: rank 0's are kept, the others' go to files of their own
torchrun $DISTRIBUTED_ARGS --log-dir torchrun-logs --redirects 3 pretrain_gpt.py \
    $GPT_ARGS \
    --data-path $DATA_PATH \
    --vocab-file $VOCAB_FILE \
    --merge-file $MERGE_FILE \
    --split 949,50,1 \
    --log-interval 2 \
    --save-interval 3 \
    --eval-interval 1000 \
    --eval-iters 10 \
    --distributed-backend gloo \
    --save $CHECKPOINT_PATH \
    --load $CHECKPOINT_PATH
code=$?
for log in torchrun-logs/*/attempt_0/*/stdout.log; do echo "== rank $((GPUS_PER_NODE * NODE_RANK + $(basename $(dirname $log))))"; cat $log; done
exit $code
