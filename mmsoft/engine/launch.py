"""Several processes, on GPUs as MMEngine starts them and on CPUs through gloo."""

import os

import torch

LAUNCHERS = ('none', 'pytorch', 'slurm', 'mpi')
# What each launcher calls rank, local rank and world size.
_VARIABLES = {
    'pytorch': ('RANK', 'LOCAL_RANK', 'WORLD_SIZE'),
    'slurm': ('SLURM_PROCID', 'SLURM_LOCALID', 'SLURM_NTASKS'),
    'mpi': ('OMPI_COMM_WORLD_RANK', 'OMPI_COMM_WORLD_LOCAL_RANK', 'OMPI_COMM_WORLD_SIZE'),
}
_STARTERS = {'pytorch': 'torchrun (tools/dist_train.sh)', 'slurm': 'srun (tools/slurm_train.sh)', 'mpi': 'mpirun'}


def start_processes(launcher: str) -> None:
    """Join the other processes, if a launcher started several; where there is a GPU, MMEngine does it."""
    if launcher == 'none' or torch.distributed.is_initialized():
        return
    missing = [name for name in _VARIABLES[launcher] if name not in os.environ]
    if missing:
        raise RuntimeError(
            f'--launcher {launcher} needs the variables {", ".join(missing)}, which {_STARTERS[launcher]} sets; '
            'start it so, or leave --launcher out'
        )
    if torch.cuda.is_available():
        from mmengine.dist import init_dist

        init_dist(launcher, backend='nccl')
        return
    for ours, theirs in zip(_VARIABLES['pytorch'], _VARIABLES[launcher], strict=True):
        os.environ[ours] = os.environ[theirs]
    if launcher == 'slurm' and 'MASTER_ADDR' not in os.environ:
        os.environ['MASTER_ADDR'] = _first_host(os.environ['SLURM_JOB_NODELIST'])
    os.environ.setdefault('MASTER_ADDR', '127.0.0.1')
    os.environ.setdefault('MASTER_PORT', '29500')
    torch.distributed.init_process_group('gloo')


def _first_host(nodes: str) -> str:
    """'node[03-05,9],other' -> 'node03'."""
    head, bracket, rest = nodes.partition('[')
    if not bracket or ',' in head:
        return head.split(',')[0]
    return head + rest.replace(']', ',').replace('-', ',').split(',')[0]
