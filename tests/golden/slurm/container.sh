#!/bin/bash
#SBATCH --job-name=train
#SBATCH --nodes=2
#SBATCH --open-mode=append
#SBATCH --ntasks-per-node=1
# made by fleet; it runs under plain sbatch, too
# exec: Slurm ends a batch step with its shell, and a shell does not pass on SIGTERM
FLEET_CLAIMS=RUN exec fleet --on slurm launch --container=train:1 --container-arg=--container-writable train.py
