#!/bin/bash
#SBATCH --job-name=train
#SBATCH --nodes=1
#SBATCH --open-mode=append
#SBATCH --ntasks-per-node=1
# 8 ranks a node with 8 CPUs each: fleet starts one task, which has them all
#SBATCH --cpus-per-task=64
#SBATCH --mem=0
#SBATCH --exclusive
# made by fleet; it runs under plain sbatch, too
# exec: Slurm ends a batch step with its shell, and a shell does not pass on SIGTERM
FLEET_CLAIMS=RUN exec fleet --on slurm launch --nproc-per-node=8 train.py
