"""The whole network once more, written from the mathematics alone: float64, image by image, head by head.

Takes weights under the authors' names. Shares no code with the package, so that neither can hide the
other's mistakes; slow and obvious on purpose.
"""

import math

import torch
import torch.nn.functional as F

RATIOS = {1: 8, 2: 4, 3: 2}


def soft_reference(weights, images, attn='soft_pp', num_landmarks=None):
    """images (B, 3, H, W) -> (logits (B, classes), maps of stages 1 to 3)."""
    weights = {name: value.double() for name, value in weights.items()}
    results = [_one_image(weights, image.double(), attn, num_landmarks) for image in images]
    logits = torch.stack([logits for logits, _ in results])
    return logits, [torch.stack([maps[i] for _, maps in results]) for i in range(3)]


def _one_image(w, image, attn, num_landmarks):
    x, maps = image[None], []
    head_dim = w['block1.0.att.mha.attn.Qlandmark_op.weight'].shape[0]
    for stage in (1, 2, 3, 4):
        for unit, stride in enumerate((2, 1, 2) if stage == 1 else (2,)):
            x = F.relu(_conv_bn(w, f'patch_embed{stage}.proj', 3 * unit, x, stride))
        _, channels, height, width = x.shape
        table = w[f'pos_embed{stage}']
        grid = table[:, -(math.isqrt(table.shape[1]) ** 2) :]
        side = math.isqrt(grid.shape[1])
        grid = grid.transpose(1, 2).reshape(1, channels, side, side)
        x = x + F.interpolate(grid, size=(height, width), mode='bilinear')
        tokens = x[0].flatten(1).T  # (N, C)
        if stage == 4:
            tokens = torch.cat(((w['cls_token'] + table[:, :1])[0], tokens))
        block = 0
        while f'block{stage}.{block}.' + ('att.norm1.weight' if stage < 4 else 'norm1.weight') in w:
            step = _soft_block if stage < 4 else _softmax_block
            tokens = step(w, f'block{stage}.{block}.', tokens, (height, width), stage, head_dim, attn, num_landmarks)
            block += 1
        if stage < 4:
            x = tokens.T.reshape(1, channels, height, width)
            maps.append(x[0])
    cls = _norm(w, 'norm', tokens, 1e-6)[0]
    return w['head.weight'] @ cls + w['head.bias'], maps


def _soft_block(w, name, x, grid, stage, head_dim, attn, num_landmarks):
    mha = name + 'att.mha.'
    q, v = _linear(w, mha + 'W_q', x) / head_dim**0.25, _linear(w, mha + 'W_v', x)
    heads = x.shape[1] // head_dim
    parts = [slice(h * head_dim, (h + 1) * head_dim) for h in range(heads)]
    landmarks = [_landmarks(w, mha + 'attn.', q[:, part], grid, RATIOS[stage], num_landmarks) for part in parts]
    windows = max(grid[0] // RATIOS[stage], 1) * max(grid[1] // RATIOS[stage], 1)
    share = len(landmarks[0]) / windows  # less than 1 where they are bounded
    grams = [_kernel(lm, lm) for lm in landmarks]
    inverses = _normalised(grams) if attn == 'soft_pp' else [_plain(a) for a in grams]
    y = []
    for part, lm, inverse, h in zip(parts, landmarks, inverses, range(heads), strict=True):
        p = _kernel(q[:, part], lm)
        kernel = w[mha + 'attn.conv.weight'][h]  # (1, k, k), one for the head's channels
        local = F.conv2d(v[:, part].T.reshape(head_dim, 1, *grid), kernel[None], padding=kernel.shape[-1] // 2)
        y.append(share * p @ inverse @ p.T @ v[:, part] + local.reshape(head_dim, -1).T)
    x = _norm(w, name + 'att.norm1', x + _linear(w, mha + 'ff', torch.cat(y, 1)), 1e-5)
    hidden = F.gelu(_linear(w, name + 'att.ff1', x), approximate='tanh')
    return _norm(w, name + 'att.norm2', x + _linear(w, name + 'att.ff2', hidden), 1e-5)


def _softmax_block(w, name, x, grid, stage, head_dim, attn, num_landmarks):
    y = _norm(w, name + 'norm1', x, 1e-6)
    q = _linear(w, name + 'attn.q', y)
    k, v = _linear(w, name + 'attn.kv', y).chunk(2, 1)
    heads = [
        (q[:, i : i + head_dim] @ k[:, i : i + head_dim].T / math.sqrt(head_dim)).softmax(1) @ v[:, i : i + head_dim]
        for i in range(0, x.shape[1], head_dim)
    ]
    x = x + _linear(w, name + 'attn.proj', torch.cat(heads, 1))
    y = F.gelu(_linear(w, name + 'mlp.fc1', _norm(w, name + 'norm2', x, 1e-6)))
    return x + _linear(w, name + 'mlp.fc2', y)


def _landmarks(w, name, q, grid, ratio, num_landmarks):
    x = q.T.reshape(1, -1, *grid)
    gh, gw = max(grid[0] // ratio, 1), max(grid[1] // ratio, 1)
    if num_landmarks is not None and gh * gw > num_landmarks:
        gh, gw = best_grid(*grid, num_landmarks)
        x = F.adaptive_avg_pool2d(x, (gh * ratio, gw * ratio))
    padded = x.new_zeros(1, x.shape[1], max(x.shape[2], ratio), max(x.shape[3], ratio))
    padded[:, :, : x.shape[2], : x.shape[3]] = x
    x = F.conv2d(padded, w[name + 'Qlandmark_op.weight'], stride=ratio)
    return F.gelu(_norm(w, name + 'Qnorm_act.0', x[0].flatten(1).T, 1e-5))


def best_grid(height, width, limit):
    """Every grid is tried: most even sampling, then the nearest shape, then the most landmarks."""
    grids = [(a, b) for a in range(1, limit + 1) for b in range(1, limit + 1) if a * b <= limit]
    evenness = {g: min(g[0] / height, g[1] / width) for g in grids}
    best = [g for g in grids if math.isclose(evenness[g], max(evenness.values()), rel_tol=1e-12)]
    skew = {g: abs(math.log(g[0] / g[1]) - math.log(height / width)) for g in best}
    best = [g for g in best if math.isclose(skew[g], min(skew.values()), rel_tol=1e-9, abs_tol=1e-12)]
    return max(best, key=lambda g: g[0] * g[1])


def _kernel(x, y):
    return torch.exp(-((x[:, None] - y[None]) ** 2).sum(-1) / 2)


def _newton(a, alpha):
    x = alpha * a
    for _ in range(20):
        x = 2 * x - x @ a @ x
    return x


def _plain(a):
    alpha = 0.9 * 2 / torch.linalg.matrix_norm(a, 1) ** 2
    return _newton(a + 0.01 * torch.eye(len(a), dtype=a.dtype), alpha)


def _normalised(grams):
    first = alpha = 2 / max(torch.linalg.matrix_norm(a, 1) for a in grams) ** 2
    eye = torch.eye(len(grams[0]), dtype=grams[0].dtype)
    for _ in range(10):
        if all(torch.linalg.matrix_norm(eye - alpha * a @ a, 1) <= 1.01 for a in grams):
            break
        alpha = alpha / 2
    alpha = first * 1.9 / 2 if alpha == first else alpha
    roots = [torch.diag(a.sum(1) ** -0.5) for a in grams]
    return [root @ _newton(a, alpha) @ root for a, root in zip(grams, roots, strict=True)]


def _linear(w, name, x):
    return x @ w[name + '.weight'].T + w[name + '.bias']


def _norm(w, name, x, eps):
    return F.layer_norm(x, x.shape[-1:], w[name + '.weight'], w[name + '.bias'], eps)


def _conv_bn(w, name, index, x, stride):
    x = F.conv2d(x, w[f'{name}.{index}.weight'], w[f'{name}.{index}.bias'], stride, padding=1)
    bn = f'{name}.{index + 1}.'
    return F.batch_norm(x, w[bn + 'running_mean'], w[bn + 'running_var'], w[bn + 'weight'], w[bn + 'bias'], eps=1e-5)
