#!/bin/bash
#SBATCH --job-name=train
#SBATCH --nodes=1
#SBATCH --open-mode=append
#SBATCH --ntasks-per-node=1
#SBATCH --time=1-00
#SBATCH --signal=TERM@150
# made by fleet; it runs under plain sbatch, too
# exec: Slurm ends a batch step with its shell, and a shell does not pass on SIGTERM
FLEET_CLAIMS=RUN exec fleet --on slurm launch --grace=120.0 train.py
