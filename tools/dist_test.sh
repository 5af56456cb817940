#!/usr/bin/env bash
# Test in several processes of one or more machines:
#   tools/dist_test.sh CONFIG CHECKPOINT PROCESSES [options of test.py]
# On each of several machines: NNODES=2 NODE_RANK=0 MASTER_ADDR=<first machine> MASTER_PORT=29500 tools/dist_test.sh ...
set -euo pipefail
(($# >= 3)) || { sed -n '2,4s/^# \{0,1\}//p' "$0" >&2; exit 2; }
config=$1 checkpoint=$2 processes=$3
exec "${PYTHON:-python}" -m mmsoft.engine.torchrun --nnodes="${NNODES:-1}" --node_rank="${NODE_RANK:-0}" \
  --master_addr="${MASTER_ADDR:-127.0.0.1}" --master_port="${MASTER_PORT:-29500}" --nproc_per_node="$processes" \
  "$(dirname "$0")/test.py" "$config" "$checkpoint" --launcher pytorch "${@:4}"
