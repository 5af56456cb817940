# Sourced by slurm_train.sh and slurm_test.sh with a partition, a job name and further options: sets srun to the command.
gpus=${GPUS:-8} per_node=${GPUS_PER_NODE:-8}
srun=(srun --partition="$1" --job-name="$2" "${@:3}" --cpus-per-task="${CPUS_PER_TASK:-5}" --kill-on-bad-exit=1)
if ((per_node > 0)); then
  ((gpus >= per_node)) || per_node=$gpus
  srun+=(--gres="gpu:$per_node" --ntasks="$gpus" --ntasks-per-node="$per_node")
else
  srun+=(--ntasks="${PROCESSES:?give PROCESSES with GPUS_PER_NODE=0}")
fi
export MASTER_PORT=${MASTER_PORT:-29500}
read -ra extra <<<"${SRUN_ARGS:-}"
srun+=("${extra[@]}")
