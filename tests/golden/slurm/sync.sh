#!/bin/bash
#SBATCH --job-name=try
#SBATCH --nodes=1
#SBATCH --open-mode=append
#SBATCH --ntasks-per-node=1
# made by fleet; it runs under plain sbatch, too
export FLEET_CLAIMS=RUN
# exec: Slurm ends a batch step with its shell, and a shell does not pass on SIGTERM
exec fleet --on slurm launch --env-file=runs/RUN/job.env --workdir=/scratch/me --sync --name=try --no-preflight train.py
