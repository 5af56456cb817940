"""The four InLine networks once more, from the mathematics alone: float64, image by image, head by head.

Takes weights under the authors' names. Shares no code with the package, so that neither can hide the
other's mistakes; every attention is written with its N x N weights, slow and obvious on purpose.
"""

import math

import torch
import torch.nn.functional as F

KERNELS = {'identity': lambda x: x, 'relu': F.relu, 'leaky_relu': F.leaky_relu, 'exp': lambda x: torch.exp(x / 5)}


def inline_reference(family, weights, images, kernel='identity'):
    """images (B, 3, H, W) -> (logits (B, classes), maps of the four stages; of DeiT the one before its pyramid).

    ``family``: pvt, swin, deit or cswin. Swin's and CSwin's last map is normalised, as is DeiT's.
    """
    weights = {name: value.double() for name, value in weights.items()}
    network = dict(pvt=_pvt, swin=_swin, deit=_deit, cswin=_cswin)[family]
    results = [network(weights, image.double()[None], KERNELS[kernel]) for image in images]
    logits = torch.stack([_linear(weights, 'head', feature) for feature, _ in results])
    return logits, [torch.cat(maps) for maps in zip(*(maps for _, maps in results), strict=True)]


def _pvt(w, x, phi):
    maps = []
    for stage in (1, 2, 3, 4):
        tokens, grid = _tile(w, f'patch_embed{stage}', x)
        tokens = tokens + _positions(w[f'pos_embed{stage}'], grid)
        for name in _blocks(w, f'block{stage}'):
            y = _norm(w, name + 'norm1', tokens, 1e-6)
            k, v = _linear(w, name + 'attn.kv', y).chunk(2, 1)
            attended = _inline(w, name + 'attn.residual', y, _linear(w, name + 'attn.q', y), k, v, grid, phi)
            tokens = _add(w, name, tokens, _linear(w, name + 'attn.proj', attended), 1e-6)
        x = _to_map(tokens, grid)
        maps.append(x)
    return tokens.mean(0), maps


def _deit(w, x, phi):
    tokens, grid = _tile(w, 'patch_embed', x)
    table = w['pos_embed']
    tokens = torch.cat((w['cls_token'][0] + table[0, :1], tokens + _positions(table[:, 1:], grid)))
    for name in _blocks(w, 'blocks'):
        y = _norm(w, name + 'norm1', tokens, 1e-6)
        q, k, v = _linear(w, name + 'attn.qkv', y).chunk(3, 1)
        attended = _inline(w, name + 'attn.residual', y, q, k, v, grid, phi)
        tokens = _add(w, name, tokens, _linear(w, name + 'attn.proj', attended), 1e-6)
    tokens = _norm(w, 'norm', tokens, 1e-6)
    return tokens[0], [_to_map(tokens[1:], grid)]


def _swin(w, x, phi):
    tokens, grid = _tile(w, 'patch_embed', x)
    maps = []
    for stage in range(4):
        for index, name in enumerate(_blocks(w, f'layers.{stage}.blocks')):
            y = _norm(w, name + 'norm1', tokens, 1e-5)
            if name + 'attn.relative_position_bias_table' in w:
                attended = _window_attention(w, name + 'attn.', y, grid, shifts=index % 2 == 1)
            else:
                q, k, v = _linear(w, name + 'attn.qkv', y).chunk(3, 1)
                attended = _inline(w, name + 'attn.residual', y, q, k, v, grid, phi)
            tokens = _add(w, name, tokens, _linear(w, name + 'attn.proj', attended), 1e-5)
        if stage < 3:
            maps.append(_to_map(tokens, grid))
            x = _pad(maps[-1], 2)
            tokens = torch.cat([x[0, :, r::2, c::2].flatten(1) for c in (0, 1) for r in (0, 1)]).T
            tokens = _norm(w, f'layers.{stage}.downsample.norm', tokens, 1e-5)
            tokens, grid = tokens @ w[f'layers.{stage}.downsample.reduction.weight'].T, _halved(grid)
    tokens = _norm(w, 'norm', tokens, 1e-5)
    return tokens.mean(0), [*maps, _to_map(tokens, grid)]


def _cswin(w, x, phi, split=7):
    x = F.conv2d(_pad(x, 4), w['stage1_conv_embed.0.weight'], w['stage1_conv_embed.0.bias'], stride=4, padding=2)
    grid, tokens = x.shape[2:], _norm(w, 'stage1_conv_embed.2', x[0].flatten(1).T, 1e-5)
    heads = _cswin_heads(w)
    maps = []
    for stage in (1, 2, 3, 4):
        for name in _blocks(w, f'stage{stage}'):
            y = _norm(w, name + 'norm1', tokens, 1e-5)
            if name + 'attns.1.get_v.weight' in w:
                attended = _stripe_attention(w, name, y, grid, heads[stage - 1], split)
            else:
                q, k, v = _linear(w, name + 'qkv', y).chunk(3, 1)
                if name + 'attns.0.residual.0.weight' in w:  # the predictor sees what is not normalised
                    attended = _inline(w, name + 'attns.0.residual', tokens, q, k, v, grid, phi)
                else:
                    attended = _softmax(q, k, v, heads[stage - 1])
                attended = attended + _lepe(w, name + 'attns.0', v, grid)
            tokens = _add(w, name, tokens, _linear(w, name + 'proj', attended), 1e-5)
        if stage < 4:
            maps.append(_to_map(tokens, grid))
            merge = f'merge{stage}.'
            x = F.conv2d(maps[-1], w[merge + 'conv.weight'], w[merge + 'conv.bias'], stride=2, padding=1)
            grid, tokens = x.shape[2:], _norm(w, merge + 'norm', x[0].flatten(1).T, 1e-5)
    tokens = _norm(w, 'norm', tokens, 1e-5)
    return tokens.mean(0), [*maps, _to_map(tokens, grid)]


def _inline(w, predictor, seen, q, k, v, grid, phi):
    """Row i of the weights: s/n q_i K' + (1 - s q_i mean(k)) / n; tokens before those of the grid have no local term.

    ``seen`` (N, C) is what the predictor of the kernels averages.
    """
    groups = w[predictor + '.0.weight']  # (C, d, 1)
    count, (channels, dim) = len(q), groups.shape[:2]
    mean, hidden, kernels = seen.mean(0), [], []
    for i in range(0, channels, dim):
        hidden.append(groups[i : i + dim, :, 0] @ mean[i : i + dim])
    hidden = F.gelu(torch.cat(hidden) + w[predictor + '.0.bias'])
    for i in range(0, channels, dim):
        kernels.append(w[predictor + '.2.weight'][9 * i : 9 * (i + dim), :, 0] @ hidden[i : i + dim])
    kernels = (torch.cat(kernels) + w[predictor + '.2.bias']).reshape(channels, 1, 3, 3)
    outputs = []
    for i in range(0, channels, dim):
        part = slice(i, i + dim)
        a, b = phi(q[:, part]), phi(k[:, part])
        weights = (a @ b.T / math.sqrt(dim) + 1 - (a @ b.mean(0) / math.sqrt(dim))[:, None]) / count
        assert torch.allclose(weights.sum(1), torch.ones(count, dtype=q.dtype))
        outputs.append(weights @ v[:, part])
    y = torch.cat(outputs, 1)
    leading = count - grid[0] * grid[1]
    local = F.conv2d(_to_map(v[leading:], grid), kernels, padding=1, groups=channels)
    y[leading:] += local[0].flatten(1).T
    return y


def _softmax(q, k, v, heads, bias=None):
    """(N, C) each, bias (heads, N, N) -> (N, C)."""
    dim = q.shape[1] // heads
    outputs = []
    for head in range(heads):
        part = slice(head * dim, (head + 1) * dim)
        scores = q[:, part] @ k[:, part].T / math.sqrt(dim)
        outputs.append((scores if bias is None else scores + bias[head]).softmax(1) @ v[:, part])
    return torch.cat(outputs, 1)


def _window_attention(w, name, y, grid, shifts):
    """Windows of the map moved up and left by half a window; what was not adjacent before does not meet."""
    table = w[name + 'relative_position_bias_table']
    window = (math.isqrt(len(table)) + 1) // 2
    shift = window // 2 if shifts and min(grid) > window else 0
    x = _pad(_to_map(y, grid), window)
    height, width = x.shape[2:]
    q, k, v = _linear(w, name + 'qkv', x[0].flatten(1).T).chunk(3, 1)
    out = torch.zeros_like(q)
    for top in range(0, height, window):
        for left in range(0, width, window):
            # where this window's tokens are on the map that was not moved
            places = [(top + r + shift, left + c + shift) for r in range(window) for c in range(window)]
            numbers = [(r % height) * width + c % width for r, c in places]
            regions = [(r >= height, c >= width) for r, c in places]
            entries = [
                [(r - s + window - 1) * (2 * window - 1) + c - t + window - 1 for s, t in places] for r, c in places
            ]
            apart = [[region != other for other in regions] for region in regions]
            bias = table[torch.tensor(entries)].permute(2, 0, 1).masked_fill(torch.tensor(apart), -math.inf)
            out[numbers] = _softmax(q[numbers], k[numbers], v[numbers], table.shape[1], bias)
    return _crop(out, (height, width), grid)


def _stripe_attention(w, name, y, grid, heads, split):
    """Half of the channels in stripes of full height, half in stripes of full width."""
    x = _pad(_to_map(y, grid), split)
    height, width = x.shape[2:]
    q, k, v = _linear(w, name + 'qkv', x[0].flatten(1).T).chunk(3, 1)
    half, out = q.shape[1] // 2, torch.zeros_like(q)
    for branch, (rows, columns) in enumerate(((height, split), (split, width))):
        part = slice(branch * half, (branch + 1) * half)
        for top in range(0, height, rows):
            for left in range(0, width, columns):
                numbers = [(top + r) * width + left + c for r in range(rows) for c in range(columns)]
                values = v[numbers][:, part]
                stripe = _softmax(q[numbers][:, part], k[numbers][:, part], values, heads // 2)
                out[numbers, part] = stripe + _lepe(w, f'{name}attns.{branch}', values, (rows, columns))
    return _crop(out, (height, width), grid)


def _cswin_heads(w):
    """Of the four stages: InLine blocks show theirs, softmax blocks have twice those of the stage before."""
    heads = []
    for stage in (1, 2, 3, 4):
        predictor = w.get(f'stage{stage}.0.attns.0.residual.0.weight')
        heads.append(2 * heads[-1] if predictor is None else predictor.shape[0] // predictor.shape[1])
    return heads


def _lepe(w, name, v, grid):
    kernel, bias = w[name + '.get_v.weight'], w[name + '.get_v.bias']
    return F.conv2d(_to_map(v, grid), kernel, bias, padding=1, groups=len(kernel))[0].flatten(1).T


def _add(w, name, x, y, eps):
    x = x + y
    return x + _linear(w, name + 'mlp.fc2', F.gelu(_linear(w, name + 'mlp.fc1', _norm(w, name + 'norm2', x, eps))))


def _tile(w, name, x):
    """Patches without overlap -> tokens (N, C), normalised where there is a norm, and their grid."""
    kernel = w[name + '.proj.weight']
    x = F.conv2d(_pad(x, kernel.shape[-1]), kernel, w[name + '.proj.bias'], stride=kernel.shape[-1])
    tokens = x[0].flatten(1).T
    return _norm(w, name + '.norm', tokens, 1e-5) if name + '.norm.weight' in w else tokens, x.shape[2:]


def _positions(table, grid):
    """(1, s * s, C) -> (H * W, C), resized bilinearly."""
    side = math.isqrt(table.shape[1])
    table = table.transpose(1, 2).reshape(1, -1, side, side)
    return F.interpolate(table, size=tuple(grid), mode='bilinear', align_corners=False)[0].flatten(1).T


def _blocks(w, prefix):
    """Names of the layers below ``prefix``, with their point."""
    count = 0
    while f'{prefix}.{count}.norm1.weight' in w:
        yield f'{prefix}.{count}.'
        count += 1


def _pad(x, multiple):
    """Zeros at the right and bottom."""
    return F.pad(x, (0, -x.shape[3] % multiple, 0, -x.shape[2] % multiple))


def _crop(tokens, padded, grid):
    return _to_map(tokens, padded)[0, :, : grid[0], : grid[1]].flatten(1).T


def _halved(grid):
    return math.ceil(grid[0] / 2), math.ceil(grid[1] / 2)


def _to_map(tokens, grid):
    return tokens.T.reshape(1, -1, *grid)


def _linear(w, name, x):
    return x @ w[name + '.weight'].T + w[name + '.bias']


def _norm(w, name, x, eps):
    return F.layer_norm(x, x.shape[-1:], w[name + '.weight'], w[name + '.bias'], eps)
