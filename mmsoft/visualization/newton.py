"""The landmarks' matrix A of SOFT and SOFT++: how fast Newton's iteration inverts it, and how large the inverse is."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from mmsoft.layers import SoftAttention
from mmsoft.ops import newton_inverse
from mmsoft.ops.attention import landmark_matrices
from mmsoft.ops.dispatch import has_fast_float64

from .looking import Look, backbone_of, look

STEPS = 35  # of the paper's Figure 5
COUNTS = (9, 25, 49, 100, 196, 400, 784)  # landmarks of Figure 6


def soft_looks(model: nn.Module, image: Tensor, stages: Sequence[int] | None = None) -> list[Look]:
    """What the layers with landmarks' matrices are called with."""
    looks = [each for each in look(model, image, stages) if isinstance(each.layer, SoftAttention)]
    if not looks:
        where = '' if stages is None else f' in stage {", ".join(map(str, stages))}'
        raise ValueError(
            f'{type(backbone_of(model)).__name__} has no SOFT or SOFT++ attention{where}: nothing to invert'
        )
    return looks


@torch.no_grad()
def landmarks_of(seen: Look) -> Tensor:
    """A layer's landmarks (1, h, m, d), in the precision in which it computes with them."""
    layer = seen.layer
    q = layer.q(seen.x[:, seen.leading :])
    landmarks = layer.landmarks(q, seen.grid, layer.head_dim**-0.25)
    return landmarks.double() if not layer.normalize and has_fast_float64(q) else landmarks.float()


@torch.no_grad()
def newton_residuals(a: Tensor, alpha: Tensor, steps: int = STEPS) -> Tensor:
    """``|A X A - A|_2 / |A|_2`` after 0 to ``steps`` steps: a (..., m, m) -> (..., steps + 1)."""
    x, norm, residuals = alpha * a, _norm2(a), []
    for _ in range(steps + 1):
        residuals.append(_norm2(a @ x @ a - a) / norm)
        x = 2 * x - x @ a @ x
    return torch.stack(residuals, -1)


def _norm2(a: Tensor) -> Tensor:
    """The largest singular value of matrices that are symmetric but for rounding."""
    return torch.linalg.eigvalsh((a + a.mT) / 2).abs().amax(-1)


def newton_convergence(
    model: nn.Module, images: Iterable[Tensor], steps: int = STEPS, stages: Sequence[int] | None = None
) -> dict[int, np.ndarray]:
    """Stage -> residuals (pictures, matrices, steps + 1) for images (1, 3, H, W): SOFT's Figure 5.

    A matrix a head and layer. Of SOFT it is A + 0.01 I, which is what it inverts.
    """
    found: dict[int, list[np.ndarray]] = {}
    for image in images:
        of_stage: dict[int, list[Tensor]] = {}
        for each in soft_looks(model, image, stages):
            _, inverted, alpha = landmark_matrices(landmarks_of(each), each.layer.normalize)
            of_stage.setdefault(each.stage, []).append(newton_residuals(inverted, alpha, steps)[0])
        for stage, parts in of_stage.items():
            found.setdefault(stage, []).append(torch.cat(parts).cpu().numpy())
    if not found:
        raise ValueError('there are no pictures to look at')
    return {stage: np.stack(parts) for stage, parts in found.items()}


@torch.no_grad()
def spectrum(
    model: nn.Module, image: Tensor, counts: Sequence[int] = COUNTS, stages: Sequence[int] | None = None
) -> tuple[dict[str, np.ndarray], list[dict[str, Any]]]:
    """Eigenvalues of A, and norms of its inverse against the number of landmarks: SOFT's Figure 6.

    Gives, by layer, the last of each stage, the eigenvalues (h, m) with as many landmarks as there are windows (at most
    the largest of ``counts``), falling; and a row a layer, head and number of landmarks that the image has room for:
    ``exact``, the norm of A's pseudo-inverse, ``exact_normalized``, that of D^(-1/2) A^+ D^(-1/2), and what the
    iteration makes of both as SOFT and as SOFT++ run it: ``soft``, ``soft_pp``.
    """
    values, rows = {}, []
    for each in {seen.stage: seen for seen in soft_looks(model, image, stages)}.values():
        landmarks, done = each.layer.landmarks, set()
        kept = landmarks.num_landmarks
        for count in sorted(counts):
            try:
                landmarks.num_landmarks = count
                points = landmarks_of(each).double()
            finally:
                landmarks.num_landmarks = kept
            if points.shape[2] in done:
                continue
            done.add(points.shape[2])
            eigenvalues = torch.linalg.eigvalsh(landmark_matrices(points, True)[0])[0].flip(-1)
            values[each.name] = eigenvalues.cpu().numpy()
            norms = inverse_norms(points, each.layer.newton_iters)
            for head in range(points.shape[1]):
                place = dict(layer=each.name, stage=each.stage, head=head + 1, landmarks=points.shape[2])
                rows.append(place | {name: norm[head].item() for name, norm in norms.items()})
    return values, rows


def inverse_norms(landmarks: Tensor, iterations: int) -> dict[str, Tensor]:
    """Spectral norms (h,) of inverses of A for landmarks (1, h, m, d): see :func:`spectrum`."""
    a, ridged, alpha = landmark_matrices(landmarks, False)
    exact = torch.linalg.pinv(a, hermitian=True)
    fast = newton_inverse(a, landmark_matrices(landmarks, True)[2], iterations)
    root = a.sum(-1).rsqrt()  # D^(-1/2)
    scale = root.unsqueeze(-1) * root.unsqueeze(-2)
    found = dict(exact=exact, exact_normalized=scale * exact)
    found |= dict(soft=newton_inverse(ridged, alpha, iterations), soft_pp=scale * fast)
    return {name: _norm2(inverse)[0] for name, inverse in found.items()}
