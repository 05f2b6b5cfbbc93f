#!/bin/bash
# Three machines under Slurm: sbatch deploy/slurm.sh. What to change: README.md in this folder.
#SBATCH --job-name=train
#SBATCH --nodes=3
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=4
#SBATCH --time=24:00:00
#SBATCH --output=%x-%j.out
#SBATCH --open-mode=append
# Two minutes before the time is up this shell is told, and the job goes back into the queue: see `stop`.
#SBATCH --requeue
#SBATCH --signal=B:USR1@120

# Each start of the processes gets a store of its own. Without it restarts fail.
export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1
first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
port=$((20000 + SLURM_JOB_ID % 10000))

start() {
    # What is between the quotes is for the shell on each machine.
    # shellcheck disable=SC2016
    srun --kill-on-bad-exit=0 bash -c '
        exec torchrun \
            --nnodes "$SLURM_JOB_NUM_NODES" \
            --nproc-per-node 4 \
            --max-restarts 10 \
            --rdzv-id "$SLURM_JOB_ID" \
            --rdzv-backend c10d \
            --rdzv-endpoint "$0:$1" \
            --rdzv-conf "is_host=$((SLURM_PROCID == 0)),join_timeout=3600,read_timeout=3600" \
            --local-addr "$SLURMD_NODENAME" \
            "${@:2}"' "$first" "$port" "$@" &
    srun_pid=$!
}

# All processes save at the same step and stop; the same command then goes on from there.
# shellcheck disable=SC2317  # called by the trap
stop() {
    trap '' USR1
    scancel --signal=TERM "$SLURM_JOB_ID" # srun itself would kill them
    wait "$srun_pid"
    scontrol requeue "$SLURM_JOB_ID"
    exit 0
}
trap stop USR1 # not TERM: that is what scancel sends, and a cancelled job must not come back

# torchrun starts lost processes again; when it has to give up itself, all machines begin anew.
for _ in {1..3}; do
    start train.py
    wait "$srun_pid" && exit 0
    sleep 10
done
exit 1
