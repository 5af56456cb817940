"""Graphs whose height and width are symbols are right at sizes that the export never saw, for every family."""

import pytest
import torch
from backbones import CASES
from helpers import exports_whole_models
from torch import nn

from mmsoft.exporting import ExportError
from mmsoft.exporting.graph import least_side, make_graph, without_assertions
from mmsoft.exporting.whole import RawNetwork


class Maps(nn.Module):
    """A model that is a backbone alone."""

    def __init__(self, backbone):
        super().__init__()
        self.backbone = backbone

    def extract_feat(self, images):
        return self.backbone(images)


def raw(backbone):
    return RawNetwork(Maps(backbone), [120.0] * 3, [60.0] * 3, bgr=False).eval()


@pytest.mark.slow
@exports_whole_models
@pytest.mark.filterwarnings('ignore')
@pytest.mark.parametrize('name', [*CASES, 'averaged landmarks'])
def test_graphs_of_open_sizes_are_right_at_every_size(name):
    torch.manual_seed(0)
    if name == 'averaged landmarks':
        network = raw(CASES['soft_pp'].build(landmark_sampling='avg_pool', newton_iters=4))
    else:
        network = raw(CASES[name].build(**CASES[name].short))
    if name == 'soft_mixed':  # torch.export asks Nyströmformer for the number of landmarks
        with pytest.raises(ExportError, match='Maps cannot be exported: Could not guard'):
            make_graph(network, None)
        return
    least = least_side(network)
    graph = without_assertions(make_graph(network, None, torch_alone=True)).module()
    for size in ((least, least + 40), (least + 161, least + 64), (384, 281)):
        images = torch.rand(1, 3, *size) * 255
        with torch.no_grad():
            expected, found = network(images), graph(images)
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(one, other, atol=2e-4, rtol=1e-3)
