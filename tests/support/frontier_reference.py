"""MILA and RAVLT once more, from the mathematics alone: float64, image by image, head by head, token by token.

Takes weights under the authors' names. Shares no code with the package, so that neither can hide the other's mistakes;
every attention is written with its N x N weights, slow and obvious on purpose.
"""

import math

import torch
import torch.nn.functional as F


def frontier_reference(family, weights, images, heads, linear=False):
    """images (B, 3, H, W) -> (logits (B, classes) or None, un-normed maps of the four stages, the dense outputs).

    ``family``: mila or ravlt; dense outputs are None where weights have not their norms.
    """
    w = {name: value.double() for name, value in weights.items()}
    results = [dict(mila=_mila, ravlt=_ravlt)[family](w, image.double()[None], heads, linear) for image in images]
    logits, maps = zip(*results, strict=True)
    maps = [torch.cat(stage) for stage in zip(*maps, strict=True)]
    norm, eps = ('norm{}', 1e-5) if family == 'mila' else ('extra_norms.{}.norm', 1e-6)
    dense = None
    if norm.format(0) + '.weight' in w:
        dense = [_norm_map(w, norm.format(i), x, eps) for i, x in enumerate(maps)]
    return torch.cat(logits) if logits[0] is not None else None, maps, dense


def _mila(w, x, heads, linear):
    x = F.pad(x, (0, -x.shape[3] % 4, 0, -x.shape[2] % 4))
    stem = lambda name, x, stride, pad=1: _bn(w, name + '.norm', _conv(w, name + '.conv', x, stride, pad))  # noqa: E731
    x = stem('patch_embed.conv1', x, 2).relu()
    x = x + stem('patch_embed.conv2.1', stem('patch_embed.conv2.0', x, 1).relu(), 1)
    x = stem('patch_embed.conv3.1', stem('patch_embed.conv3.0', x, 2).relu(), 1, 0)
    maps = []
    for stage in range(4):
        for name in _blocks(w, f'layers.{stage}.blocks'):
            x = x + _depthwise(w, name + 'cpe1', x)
            u = _norm(w, name + 'norm1', _tokens(x), 1e-5)
            t = _depthwise(w, name + 'dwc', _map(_linear(w, name + 'in_proj', u), x))
            t = t * torch.sigmoid(t)
            gate = _linear(w, name + 'act_proj', u)
            q, k = _linear(w, name + 'attn.qk', _tokens(t)).chunk(2, 1)
            y = _mila_attention(q, k, _tokens(t), x.shape[2:], heads[stage])
            y = y + _tokens(_depthwise(w, name + 'attn.lepe', t))
            x = x + _map(_linear(w, name + 'out_proj', y * gate * torch.sigmoid(gate)), x)
            x = x + _depthwise(w, name + 'cpe2', x)
            hidden = _gelu(_linear(w, name + 'mlp.fc1', _norm(w, name + 'norm2', _tokens(x), 1e-5)))
            x = x + _map(_linear(w, name + 'mlp.fc2', hidden), x)
        maps.append(x)
        if stage < 3:
            name = f'layers.{stage}.downsample.conv.'
            x = F.pad(x, (0, x.shape[3] % 2, 0, x.shape[2] % 2))
            x = _conv(w, name + '0.conv', x, 1, 0).relu()
            x = _conv(w, name + '1.conv', x, 2, 1, groups=x.shape[1]).relu()
            x = _bn(w, name + '2.norm', _conv(w, name + '2.conv', x, 1, 0))
    if 'head.weight' not in w:
        return None, maps
    return _linear(w, 'head', _norm(w, 'norm', _tokens(x), 1e-5).mean(0))[None], maps


def _mila_attention(q, k, v, grid, heads):
    """Channel pair p turns by y or x times 10000 to a power of p over a quarter of all channels."""
    quarter = q.shape[1] // 4
    angles = torch.zeros(len(q), 2 * quarter, dtype=q.dtype)
    for token in range(len(q)):
        row, column = divmod(token, grid[1])
        for p in range(2 * quarter):
            angles[token, p] = row * 10000 ** (-p / quarter) if p < quarter else column * 10000 ** (1 - p / quarter)
    a, b = _phi(q), _phi(k)
    turned_a, turned_b = _turned(a, angles), _turned(b, angles)
    outputs = []
    for part in _parts(q.shape[1], heads):
        numerator = turned_a[:, part] @ turned_b[:, part].T / len(q)
        denominator = (a[:, part] @ b[:, part].T / len(q)).sum(1, keepdim=True)
        outputs.append(numerator / (denominator + 1e-6) @ v[:, part])
    return torch.cat(outputs, 1)


def _ravlt(w, x, heads, linear):
    for i in (0, 3, 6, 9):
        x = _bn(w, f'patch_embed.proj.{i + 1}', _conv(w, f'patch_embed.proj.{i}', x, 2 if i in (0, 9) else 1, 1))
        x = x if i == 9 else _gelu(x)
    maps = []
    for stage in range(4):
        for name in _blocks(w, f'layers.{stage}.blocks'):
            x = x + _depthwise(w, name + 'pos', x)
            u = _norm_map(w, name + 'norm1.norm', x, 1e-6)
            q, k, v, gate = _conv(w, name + 'attn.qkvo', u, 1, 0).chunk(4, 1)
            softmax = stage > 1 and not linear
            y = _ravlt_attention(_tokens(q), _tokens(k), _tokens(v), x.shape[2:], heads[stage], softmax)
            y = _map(y, x) + _depthwise(w, name + 'attn.lepe', v)
            x = x + w[name + 'gamma_1'] * _conv(w, name + 'attn.proj', y * gate, 1, 0)
            hidden = _gelu(_conv(w, name + 'ffn.fc1', _norm_map(w, name + 'norm2.norm', x, 1e-6), 1, 0))
            hidden = hidden + _depthwise(w, name + 'ffn.dwconv', hidden)
            x = x + w[name + 'gamma_2'] * _conv(w, name + 'ffn.fc2', hidden, 1, 0)
        maps.append(x)
        if stage < 3:
            name = f'layers.{stage}.downsample.'
            x = _bn(w, name + 'norm', _conv(w, name + 'reduction', x, 2, 1))
    if 'head.weight' not in w:
        return None, maps
    y = _bn(w, 'norm', _conv(w, 'proj', x, 1, 0))
    y = (y * torch.sigmoid(y)).mean((2, 3), keepdim=True)
    return _conv(w, 'head', y, 1, 0).flatten(1), maps


def _ravlt_attention(q, k, v, grid, heads, softmax):
    """The first half of each head turns by y theta, the last by x theta; theta runs from 1 to 1e-4."""
    width = q.shape[1] // heads
    count = width // 4
    theta = [10000 ** (-j / (count - 1)) if count > 1 else 1 for j in range(count)]
    angles = torch.zeros(len(q), 2 * count, dtype=q.dtype)
    for token in range(len(q)):
        row, column = divmod(token, grid[1])
        angles[token] = torch.tensor([row * t for t in theta] + [column * t for t in theta])
    outputs = []
    for part in _parts(q.shape[1], heads):
        if softmax:
            scores = _turned(q[:, part], angles) @ _turned(k[:, part], angles).T / math.sqrt(width)
            outputs.append(scores.softmax(1) @ v[:, part])
            continue
        a, b = _phi(q[:, part]), _phi(k[:, part])
        share = (b @ a.mean(0) / math.sqrt(width)).softmax(0)
        numerator = _turned(a, angles) @ _turned(b, angles).T * share
        denominator = (a @ b.T * share).sum(1, keepdim=True)
        outputs.append(numerator / (denominator + 1e-6) @ v[:, part])
    return torch.cat(outputs, 1)


def _phi(x):
    return torch.where(x > 0, x + 1, x.exp())


def _turned(x, angles):
    """(N, 2 K), (N, K): neighbours (a, b) -> (a cos - b sin, a sin + b cos)."""
    y = x.clone()
    y[:, 0::2] = x[:, 0::2] * angles.cos() - x[:, 1::2] * angles.sin()
    y[:, 1::2] = x[:, 0::2] * angles.sin() + x[:, 1::2] * angles.cos()
    return y


def _parts(channels, heads):
    width = channels // heads
    return [slice(i * width, (i + 1) * width) for i in range(heads)]


def _blocks(w, prefix):
    count = len({name.split('.')[3] for name in w if name.startswith(prefix + '.')})
    return [f'{prefix}.{i}.' for i in range(count)]


def _tokens(x):
    return x[0].flatten(1).T


def _map(tokens, like):
    return tokens.T.reshape(1, -1, *like.shape[2:])


def _linear(w, name, x):
    return x @ w[name + '.weight'].T + w[name + '.bias']


def _conv(w, name, x, stride, pad, groups=1):
    return F.conv2d(x, w[name + '.weight'], w.get(name + '.bias'), stride, pad, groups=groups)


def _depthwise(w, name, x):
    return _conv(w, name, x, 1, w[name + '.weight'].shape[2] // 2, x.shape[1])


def _bn(w, name, x):
    part = lambda kind: w[f'{name}.{kind}'].view(-1, 1, 1)  # noqa: E731
    return (x - part('running_mean')) / (part('running_var') + 1e-5).sqrt() * part('weight') + part('bias')


def _norm(w, name, x, eps):
    x = x - x.mean(1, keepdim=True)
    return x / (x.square().mean(1, keepdim=True) + eps).sqrt() * w[name + '.weight'] + w[name + '.bias']


def _norm_map(w, name, x, eps):
    return _norm(w, name, x.movedim(1, 3).flatten(0, 2), eps).view(*x.movedim(1, 3).shape).movedim(3, 1)


def _gelu(x):
    return x * (1 + torch.erf(x / math.sqrt(2))) / 2
