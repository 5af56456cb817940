#!/usr/bin/env bash
# Train on a Slurm cluster:
#   [GPUS=8] [GPUS_PER_NODE=8] [CPUS_PER_TASK=5] [SRUN_ARGS=...] tools/slurm_train.sh PARTITION JOB_NAME CONFIG [options of train.py]
# GPUS=16 takes two nodes of eight. Without GPUs: GPUS_PER_NODE=0 PROCESSES=<number>.
# Preempted, or GRACE=120 seconds before its time limit, the training saves and goes on later from there: in a batch job
# (sbatch --requeue --signal=USR1@120) by scontrol requeue, else by another srun.
set -euo pipefail
(($# >= 3)) || { sed -n '2,6s/^# \{0,1\}//p' "$0" >&2; exit 2; }
source "$(dirname "$0")/slurm_run.sh" "$1" "$2" --signal="USR1@${GRACE:-120}"
trap stopped=1 INT
trap : TERM USR1 # for the trainers, which leave with 75; this shell waits for them
resume=(--resume auto) stopped=
((${SLURM_RESTART_COUNT:-0})) || resume=()
while true; do
  code=0
  "${srun[@]}" "${PYTHON:-python}" -u "$(dirname "$0")/train.py" "$3" --launcher slurm "${@:4}" "${resume[@]}" || code=$?
  ((code == 75)) && [[ -z $stopped ]] || exit "$code"
  if [[ -n ${SLURM_JOB_ID:-} ]]; then
    # a job that is cancelled or out of time is not to come back
    [[ $(scontrol show job "$SLURM_JOB_ID") == *JobState=RUNNING* ]] || exit "$code"
    exec scontrol requeue "$SLURM_JOB_ID"
  fi
  resume=(--resume auto)
done
