#!/bin/bash
#SBATCH --job-name=train
#SBATCH --nodes=2-4
#SBATCH --open-mode=append
#SBATCH --ntasks-per-node=1
#SBATCH --gres=gpu:8
# made by fleet; it runs under plain sbatch, too
# exec: Slurm ends a batch step with its shell, and a shell does not pass on SIGTERM
FLEET_CLAIMS=RUN exec fleet --on slurm launch --nnodes=2:4 --max-restarts=3 train.py
