#!/usr/bin/env bash
# Train on a Slurm cluster:
#   [GPUS=8] [GPUS_PER_NODE=8] [CPUS_PER_TASK=5] [SRUN_ARGS=...] tools/slurm_train.sh PARTITION JOB_NAME CONFIG [options of train.py]
# GPUS=16 takes two nodes of eight. Without GPUs: GPUS_PER_NODE=0 PROCESSES=<number>.
set -euo pipefail
(($# >= 3)) || { sed -n '2,4s/^# \{0,1\}//p' "$0" >&2; exit 2; }
source "$(dirname "$0")/slurm_run.sh" "$1" "$2"
exec "${srun[@]}" "${PYTHON:-python}" -u "$(dirname "$0")/train.py" "$3" --launcher slurm "${@:4}"
