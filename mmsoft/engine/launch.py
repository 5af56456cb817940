"""Several processes, on GPUs as MMEngine starts them and on CPUs through gloo."""

import atexit
import logging
import os
import sys
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import torch

LAUNCHERS = ('none', 'pytorch', 'slurm', 'mpi')
# What each launcher calls rank, local rank and world size.
_VARIABLES = {
    'pytorch': ('RANK', 'LOCAL_RANK', 'WORLD_SIZE'),
    'slurm': ('SLURM_PROCID', 'SLURM_LOCALID', 'SLURM_NTASKS'),
    'mpi': ('OMPI_COMM_WORLD_RANK', 'OMPI_COMM_WORLD_LOCAL_RANK', 'OMPI_COMM_WORLD_SIZE'),
}
_STARTERS = {'pytorch': 'torchrun (tools/dist_train.sh)', 'slurm': 'srun (tools/slurm_train.sh)', 'mpi': 'mpirun'}


def start_processes(launcher: str, dist_cfg: Mapping[str, Any] | None = None) -> None:
    """Join the other processes, if a launcher started several; where there is a GPU, MMEngine does it.

    ``dist_cfg`` is the config's: a backend for GPUs (CPUs take gloo), a timeout in seconds.
    """
    if torch.distributed.is_initialized():
        return
    if launcher == 'none':
        if int(os.environ.get('WORLD_SIZE', 1)) > 1:
            raise RuntimeError(
                f'torchrun started {os.environ["WORLD_SIZE"]} processes that do not know of each other; '
                'add --launcher pytorch'
            )
        return
    dist_cfg = {'backend': 'nccl', **(dist_cfg or {})}
    missing = [name for name in _VARIABLES[launcher] if name not in os.environ]
    if missing:
        raise RuntimeError(
            f'--launcher {launcher} needs the variables {", ".join(missing)}, which {_STARTERS[launcher]} sets; '
            'start it so, or leave --launcher out'
        )
    if torch.cuda.is_available():
        from mmengine.dist import init_dist

        init_dist(launcher, **dist_cfg)
        return
    for ours, theirs in zip(_VARIABLES['pytorch'], _VARIABLES[launcher], strict=True):
        os.environ[ours] = os.environ[theirs]
    if launcher == 'slurm' and 'MASTER_ADDR' not in os.environ:
        os.environ['MASTER_ADDR'] = _first_host(os.environ['SLURM_JOB_NODELIST'])
    os.environ.setdefault('MASTER_ADDR', '127.0.0.1')
    os.environ.setdefault('MASTER_PORT', '29500')
    timeout = timedelta(seconds=dist_cfg['timeout']) if dist_cfg.get('timeout') else None
    torch.distributed.init_process_group('gloo', timeout=timeout)


def part_processes(code: int = 0) -> None:
    """At the end of a tool: wait for the others and leave in order; with a code, leave at once."""
    if not torch.distributed.is_initialized():
        return
    gloo = torch.distributed.get_backend() == 'gloo'
    if code == 0:
        torch.distributed.barrier()
        torch.distributed.destroy_process_group()
    if gloo or code:
        # threads of gloo outlive the process group, and now and then abort a process that ends in the usual way
        atexit._run_exitfuncs()
        logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _first_host(nodes: str) -> str:
    """'node[03-05,9],other' -> 'node03'."""
    head, bracket, rest = nodes.partition('[')
    if not bracket or ',' in head:
        return head.split(',')[0]
    return head + rest.replace(']', ',').replace('-', ',').split(',')[0]
