#!/bin/bash
#SBATCH --job-name=try
#SBATCH --nodes=1
#SBATCH --open-mode=append
#SBATCH --ntasks-per-node=1
# made by fleet; it runs under plain sbatch, too
# exec: Slurm ends a batch step with its shell, and a shell does not pass on SIGTERM
FLEET_CLAIMS=RUN exec fleet --on slurm launch --env-file=runs/RUN/job.env --workdir=/scratch/me --sync --name=try --no-preflight train.py
