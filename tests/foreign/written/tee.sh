#!/bin/bash
# The shape of training recipes that keep a log beside what they show, and complain on /dev/stderr.
set -e -o pipefail
log() { echo "node $NODE_RANK of $NNODES: $*" | tee -a train.log > /dev/stderr; }
log begin
for step in {1..120}; do
    echo "step $step"
    [ $((step % 30)) != 0 ] || log "step $step of 120"
done | tee steps.log | tee /dev/stderr | sed 's/^/> /'
exec > >(tee -a train.log) 2>&1
echo "arguments: $#:" "$@"
