#!/bin/bash
#SBATCH --job-name=train
#SBATCH --nodes=4
#SBATCH --open-mode=append
#SBATCH --ntasks-per-node=1
#SBATCH --partition=gpu1
#SBATCH --gres=gpu:8
#SBATCH --time=20:00:00
# made by fleet; it runs under plain sbatch, too
# exec: Slurm ends a batch step with its shell, and a shell does not pass on SIGTERM
FLEET_CLAIMS=RUN exec fleet --on slurm launch train.py --lr 1e-4
