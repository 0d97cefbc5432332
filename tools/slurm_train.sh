#!/usr/bin/env bash
# Train on one or several nodes under Slurm, with one process per GPU. Several nodes must share the working folder.
#
#   WORK_DIR=runs/mine sbatch --nodes=2 --gpus-per-node=8 tools/slurm_train.sh maskrcnn_xcit_s12_p8_coco \
#       --data-root /path/to/coco --amp
#
# Arguments are those of train, except --work-dir. Two minutes before the time limit, Slurm sends SIGTERM: the run
# saves, and the job goes back into the queue and resumes by itself. Without Slurm, run this on every node, with the
# same ADDRESS:
#   python -m torch.distributed.run --nnodes 2 --nproc_per_node 8 --rdzv_backend c10d --rdzv_endpoint ADDRESS:29500 \
#       -m xcit_dense train CONFIG --launcher pytorch ...
#SBATCH --job-name=xcit_dense
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=32
#SBATCH --signal=B:TERM@120
#SBATCH --requeue
#SBATCH --open-mode=append
set -euo pipefail

if [ $# -eq 0 ] || [ -z "${WORK_DIR:-}" ]; then
    echo "usage: WORK_DIR=DIR sbatch --nodes=N --gpus-per-node=G $0 CONFIG [options of train]" >&2
    exit 2
fi
processes=${SLURM_GPUS_ON_NODE:-1}  # without GPUs: one process per node
port=$((20000 + SLURM_JOB_ID % 10000))  # two jobs may share a node
read -r head < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
export TORCH_ELASTIC_SHUTDOWN_TIMEOUT=110  # seconds for saving
resume=()
if [ "${SLURM_RESTART_COUNT:-0}" -gt 0 ] && [ -e "$WORK_DIR/last_checkpoint" ]; then
    resume=(--resume)
fi
stopped=
# forward to the training, which saves and ends; another signal must not interrupt the wait
trap 'trap "" TERM; stopped=1; scancel --signal=TERM "$SLURM_JOB_ID" || true' TERM
# since Slurm 22.05 srun does not inherit the CPUs from sbatch
srun --cpus-per-task="${SLURM_CPUS_PER_TASK:-1}" \
    python -m torch.distributed.run --nnodes "$SLURM_NNODES" --nproc_per_node "$processes" --rdzv_id "$SLURM_JOB_ID" \
    --rdzv_backend c10d --rdzv_endpoint "$head:$port" -m xcit_dense train "$@" --launcher pytorch --work-dir "$WORK_DIR" \
    ${resume[@]+"${resume[@]}"} &
code=0
wait $! || code=$?
if [ -n "$stopped" ]; then  # the first wait ended with the signal
    wait $! || true
    scontrol requeue "$SLURM_JOB_ID"
    exit
fi
exit $code
