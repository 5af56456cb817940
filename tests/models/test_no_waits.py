"""A pass never makes the host wait for the device: nothing is read, nothing copied, and shapes depend on no value.

So a pass can be captured as a CUDA graph, too. Meta tensors stand for a GPU's.
"""

import pytest
import torch
from backbones import CASES
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from mmsoft.ops.dispatch import PORTABLE, kernels

BY_VALUE = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}  # item and equal; nonzero and unique
SOFT = (dict(landmark_sampling='random'), dict(num_landmarks=None), dict(newton_backward='closed'))


class NoWaits(TorchDispatchMode):
    """Refuses operators that read values of the device, and those that touch tensors of another device."""

    def __init__(self, device):
        super().__init__()
        self.device, self.seen = torch.device(device), 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        masks = any(x.dtype in (torch.bool, torch.uint8) for x in tensors(args[1:]))
        by_integers = func is torch.ops.aten.index.Tensor and not masks
        assert by_integers or not BY_VALUE & {*func.tags}, f'{func} reads values'
        out = func(*args, **(kwargs or {}))
        devices = {x.device.type for x in tensors((args, kwargs, out))}
        assert devices <= {self.device.type}, f'{func} touches {devices}'
        self.seen += 1
        return out


def tensors(tree):
    return [x for x in tree_leaves(tree) if isinstance(x, torch.Tensor)]


def sizes_of(height, width):
    return [(-(-height // s), -(-width // s)) for s in (4, 8, 16, 32)]


@pytest.mark.parametrize('road', [None, PORTABLE])
@pytest.mark.parametrize('case', CASES.values(), ids=CASES.keys())
def test_no_pass_waits_for_the_device(case, road):
    images = torch.zeros(1, 3, 200, 333, device='meta')
    for options in ({}, dict(with_cp=True), *(SOFT if case.has_landmarks else ())):
        model = case.build(**dict(drop_path_rate=0.2) | options).to('meta')
        for train in (False, True):
            model.train(train)
            with kernels(road), NoWaits('meta') as watch, torch.set_grad_enabled(train):
                maps = model(images)
                if train:
                    sum(y.sum() for y in maps).backward()
            assert [tuple(y.shape[2:]) for y in maps] == sizes_of(200, 333)
            assert watch.seen > 50
        assert all(p.grad is not None for p in model.parameters())


@pytest.mark.parametrize(
    'wait',
    [
        lambda x: x.sum().item(),
        lambda x: bool((x > 0).any()),
        lambda x: x.nonzero(),
        lambda x: x[x > 0],
        lambda x: x.unique(),
        lambda x: torch.equal(x, x),
        lambda x: x.to('meta'),
        lambda x: torch.zeros(3, device='meta').copy_(x),
        lambda x: torch.arange(3, device='meta'),
    ],
)
def test_what_waits_is_found(wait):
    with pytest.raises(AssertionError, match=r'reads values|touches'), NoWaits('cpu'):
        wait(torch.arange(3, device='cpu'))
