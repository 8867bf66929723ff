#!/bin/bash
#SBATCH --job-name=train
#SBATCH --nodes=1
#SBATCH --open-mode=append
#SBATCH --array=0-2
#SBATCH --no-requeue
#SBATCH --ntasks-per-node=1
#SBATCH --gres=gpu:8
# made by fleet; it runs under plain sbatch, too
# the tasks of this array are the nodes of one run: task 0 leads it, and waits so many seconds for the others
export FLEET_ARRAY_WAIT=600
if [ "$SLURM_ARRAY_TASK_ID" != 0 ]; then # holds its node until a step of task 0 comes, and for as long as it runs
    trap '' USR1 USR2 # task 0 passes them on to ranks
    pids() { scontrol listpids "$SLURM_JOB_ID" 2>/dev/null; }
    step() {
        grep -aqs "slurmstepd: .$SLURM_JOB_ID[.][0-9]" /proc/[0-9]*/cmdline ||
            pids | awk '$3 ~ /^[0-9]+$/ { found = 1 } END { exit !found }'
    }
    until step || [ $SECONDS -gt $FLEET_ARRAY_WAIT ]; do sleep 1; done
    while step || { sleep 15; step; }; do sleep 5; done
    exit 0
fi
# exec: Slurm ends a batch step with its shell, and a shell does not pass on SIGTERM
FLEET_CLAIMS=RUN exec fleet --on slurm launch train.py
