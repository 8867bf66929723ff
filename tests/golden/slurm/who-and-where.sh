#!/bin/bash
#SBATCH --job-name=mine
#SBATCH --nodes=3
#SBATCH --open-mode=append
#SBATCH --ntasks-per-node=1
#SBATCH --account="team a"
#SBATCH --qos=high
#SBATCH --constraint="a100&ib"
#SBATCH --reservation=r1
#SBATCH --output=%j.txt
#SBATCH --nodelist=n4,n[1-2]
#SBATCH --exclude=n3
#SBATCH --mail-type=END
# made by fleet; it runs under plain sbatch, too
# exec: Slurm ends a batch step with its shell, and a shell does not pass on SIGTERM
FLEET_CLAIMS=RUN exec fleet --on slurm launch --module pkg.train 'a b' 'it'"'"'s'
