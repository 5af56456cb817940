"""Files of softmax models as their authors publish them, with random weights."""

import torch


def pvt_file(dims=(64, 128, 320, 512)):
    """A PVT v1 of one layer a stage for pictures of 224 x 224, and nine classes."""
    torch.manual_seed(2)
    weights = {
        'cls_token': torch.randn(1, 1, dims[3]),
        'head.weight': torch.randn(9, dims[3]),
        'head.bias': torch.ones(9),
    }
    weights |= {'norm.weight': torch.ones(dims[3]), 'norm.bias': torch.ones(dims[3])}
    for i, (dim, before, ratio, side, sr) in enumerate(
        zip(dims, (3, *dims), (8, 8, 4, 4), (56, 28, 14, 7), (8, 4, 2, 1), strict=False), start=1
    ):
        patch = 4 if i == 1 else 2
        shapes = {f'pos_embed{i}': (1, side * side + (i == 4), dim)}
        shapes |= {f'patch_embed{i}.proj.weight': (dim, before, patch, patch), f'block{i}.0.attn.q.weight': (dim, dim)}
        shapes |= {f'block{i}.0.attn.kv.weight': (2 * dim, dim), f'block{i}.0.attn.kv.bias': (2 * dim,)}
        shapes |= {f'block{i}.0.mlp.fc1.weight': (ratio * dim, dim), f'block{i}.0.mlp.fc1.bias': (ratio * dim,)}
        shapes |= {f'block{i}.0.mlp.fc2.weight': (dim, ratio * dim), f'block{i}.0.attn.proj.weight': (dim, dim)}
        one = [
            'attn.q.bias',
            'attn.proj.bias',
            'mlp.fc2.bias',
            *(f'norm{n}.{k}' for n in (1, 2) for k in ('weight', 'bias')),
        ]
        one += ['attn.sr.bias', 'attn.norm.weight', 'attn.norm.bias'] if sr > 1 else []
        shapes |= {f'block{i}.0.{name}': (dim,) for name in one}
        shapes |= {f'block{i}.0.attn.sr.weight': (dim, dim, sr, sr)} if sr > 1 else {}
        shapes |= {f'patch_embed{i}.{name}': (dim,) for name in ('proj.bias', 'norm.weight', 'norm.bias')}
        weights |= {name: 0.05 * torch.randn(shape) for name, shape in shapes.items()}
    return weights
