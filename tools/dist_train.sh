#!/usr/bin/env bash
# Train in several processes of one or more machines:
#   tools/dist_train.sh CONFIG PROCESSES [options of train.py]
# On each of several machines: NNODES=2 NODE_RANK=0 MASTER_ADDR=<first machine> MASTER_PORT=29500 tools/dist_train.sh ...
set -euo pipefail
(($# >= 2)) || { sed -n '2,4s/^# \{0,1\}//p' "$0" >&2; exit 2; }
config=$1 processes=$2
exec "${PYTHON:-python}" -m torch.distributed.run --nnodes="${NNODES:-1}" --node_rank="${NODE_RANK:-0}" \
  --master_addr="${MASTER_ADDR:-127.0.0.1}" --master_port="${MASTER_PORT:-29500}" --nproc_per_node="$processes" \
  "$(dirname "$0")/train.py" "$config" --launcher pytorch "${@:3}"
