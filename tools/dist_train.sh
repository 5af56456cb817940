#!/usr/bin/env bash
# Train in several processes of one or more machines:
#   tools/dist_train.sh CONFIG PROCESSES [options of train.py]
# On each of several machines: NNODES=2 NODE_RANK=0 MASTER_ADDR=<first machine> MASTER_PORT=29500 tools/dist_train.sh ...
# Told to end by a signal, the trainers save and leave with 75; torchrun gives them 30 seconds.
set -euo pipefail
(($# >= 2)) || { sed -n '2,5s/^# \{0,1\}//p' "$0" >&2; exit 2; }
config=$1 processes=$2
exec "${PYTHON:-python}" -m mmsoft.engine.torchrun --nnodes="${NNODES:-1}" --node_rank="${NODE_RANK:-0}" \
  --master_addr="${MASTER_ADDR:-127.0.0.1}" --master_port="${MASTER_PORT:-29500}" --nproc_per_node="$processes" \
  "$(dirname "$0")/train.py" "$config" --launcher pytorch "${@:3}"
