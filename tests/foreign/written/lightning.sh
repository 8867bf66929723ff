#!/bin/bash
# To the shape of Lightning's docs, "run on an on-prem cluster": one command a node, which starts the node's ranks.
set -e
python lightning_digits.py --devices 2 --nodes "$NNODES" "$@"
echo "node $NODE_RANK done"
