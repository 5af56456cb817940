"""Long Range Arena's ListOps, whose data are made by rule, with every attention in the frame of SOFT's Table 12.

Nested lists such as ``[MAX 2 [MIN 4 7] 0]`` of 500 to 2,000 tokens; the answer is a digit. Two layers, 64 wide, an MLP
of 128, two heads, landmarks by averages of four tokens. Nangia & Bowman, 2018; Tay et al., 2020.
"""

import json
import random
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import mean, median
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmsoft.layers import (
    Block,
    InLineAttention,
    Landmarks,
    LinearAttention,
    LinformerAttention,
    Mlp,
    NystromformerAttention,
    PerformerAttention,
    PreNormBlock,
    SoftAttention,
    SoftmaxAttention,
)
from mmsoft.weights.writing import whole_file

DIM, HIDDEN, HEADS, LAYERS = 64, 128, 2, 2
WINDOW, LOCAL = (1, 4), (1, 3)  # of tokens: landmarks are their averages; SOFT's local term
LENGTHS = (500, 2000)  # of Long Range Arena: the least and the most tokens
MOST_DEPTH, MOST_ARGUMENTS, NESTED = 10, 10, 0.25  # of a list; how often an argument is a list
OPERATORS: dict[str, Callable[[list[int]], int]] = {
    '[MIN': min,
    '[MAX': max,
    '[MED': lambda values: int(median(values)),
    '[SM': lambda values: sum(values) % 10,
}
# Padding is 0.
VOCABULARY = {token: number for number, token in enumerate([*map(str, range(10)), *OPERATORS, ']'], start=1)}
LR, DECAY, WARMUP = 1e-3, 0.01, 20
BOUND = 49
TOLD = 100  # steps from one line of the log to the next
PAPER = dict(softmax=37.10, linformer=37.25, performer=18.80, nystromformer=37.15, soft=37.40)
Tree = tuple[list[str], int]  # tokens, value


def _soft(normalize: bool, bound: int | None) -> SoftAttention:
    landmarks = Landmarks(DIM // HEADS, WINDOW, num_landmarks=bound, sampling='avg_pool')
    return SoftAttention(DIM, HEADS, landmarks, LOCAL, normalize)


def _nystromformer(bound: int | None) -> NystromformerAttention:
    return NystromformerAttention(DIM, HEADS, Landmarks(DIM // HEADS, WINDOW, num_landmarks=bound, sampling='avg_pool'))


ATTENTIONS: dict[str, Callable[[int], nn.Module]] = {
    'soft': lambda length: _soft(False, None),  # the paper's: landmarks grow with the sequence
    'soft_pp': lambda length: _soft(True, None),
    'soft_bounded': lambda length: _soft(False, BOUND),
    'soft_pp_bounded': lambda length: _soft(True, BOUND),
    'inline': lambda length: InLineAttention(DIM, HEADS),
    'softmax': lambda length: SoftmaxAttention(DIM, HEADS),
    'linear': lambda length: LinearAttention(DIM, HEADS),
    'performer': lambda length: PerformerAttention(DIM, HEADS),
    'linformer': lambda length: LinformerAttention(DIM, HEADS, (1, length)),
    'nystromformer': lambda length: _nystromformer(None),
    'nystromformer_bounded': lambda length: _nystromformer(BOUND),
}


def draw_tree(rng: random.Random, depth: int = 1) -> Tree:
    """A list as deep as ``MOST_DEPTH`` at the most, or below the top a digit."""
    if depth > 1 and (depth >= MOST_DEPTH or rng.random() > NESTED):
        digit = rng.randrange(10)
        return [str(digit)], digit
    operator = rng.choice(list(OPERATORS))
    parts = [draw_tree(rng, depth + 1) for _ in range(rng.randint(2, MOST_ARGUMENTS))]
    tokens = [operator, *(token for part, _ in parts for token in part), ']']
    return tokens, OPERATORS[operator]([value for _, value in parts])


def draw_set(count: int, lengths: tuple[int, int], seed: int) -> tuple[Tensor, Tensor]:
    """Tokens (count, longest) padded with 0, and answers (count,): the same for the same seed."""
    rng, tokens, answers = random.Random(seed), torch.zeros(count, lengths[1], dtype=torch.uint8), []
    while len(answers) < count:
        words, value = draw_tree(rng)
        if lengths[0] < len(words) < lengths[1]:
            tokens[len(answers), : len(words)] = torch.tensor([VOCABULARY[word] for word in words])
            answers.append(value)
    return tokens, torch.tensor(answers)


class Reader(nn.Module):
    """Tokens to the logits of ten digits, by the mean over the tokens that are no padding."""

    def __init__(self, attention: Callable[[int], nn.Module], length: int) -> None:
        super().__init__()
        # Tokens and positions start equally large: beside tokens of 1, positions are not seen for thousands of steps.
        self.embed = nn.Embedding(len(VOCABULARY) + 1, DIM, padding_idx=0)
        nn.init.normal_(self.embed.weight[1:], std=0.02)
        self.position = nn.Parameter(0.02 * torch.randn(1, length, DIM))
        self.blocks = nn.ModuleList(
            PreNormBlock(DIM, attention(length), Mlp(DIM, HIDDEN), 0.0, eps=1e-5) for _ in range(LAYERS)
        )
        self.norm, self.head = nn.LayerNorm(DIM), nn.Linear(DIM, 10)

    def forward(self, tokens: Tensor) -> Tensor:
        """(B, N) -> (B, 10). As in Long Range Arena's code, padding is masked before the mean; attention sees it."""
        kept = (tokens > 0).unsqueeze(-1)
        x = self.embed(tokens.int()) + self.position * kept
        for block in self.blocks:
            x = _run(block, x)
        x = self.norm(x) * kept
        return self.head(x.sum(1) / kept.sum(1))


def _run(block: Block, x: Tensor) -> Tensor:
    return block(x, None)


def batches(count: int, size: int, seed: int, done: int) -> Iterator[Tensor]:
    """Indices of a batch, step by step from step ``done``: every epoch in an order of its own."""
    step = done
    a_epoch = count // size
    while True:
        order = torch.randperm(count, generator=torch.Generator().manual_seed(1000 * seed + step // a_epoch))
        start = step % a_epoch * size
        yield order[start : start + size]
        step += 1


def train(
    name: str, folder: Path, steps: int, seed: int, batch: int, sizes: tuple[int, int], lengths: tuple[int, int]
) -> dict[str, Any]:
    """Train for ``steps`` in all, from where ``folder`` holds it, and test; top-1 in per cent and what it took."""
    about = dict(attention=name, seed=seed, batch=batch, sizes=list(sizes), lengths=list(lengths))
    torch.manual_seed(seed)
    model = Reader(ATTENTIONS[name], lengths[1])
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR, weight_decay=DECAY)
    state, done, seconds, losses = folder / f'{name}_{seed}.pth', 0, 0.0, []
    if state.is_file():
        kept = torch.load(state, weights_only=True)
        if kept['about'] != about:
            raise ValueError(f'{str(state)!r} is of another run, {kept["about"]}: name another --work-dir')
        model.load_state_dict(kept['model'])
        optimizer.load_state_dict(kept['optimizer'])
        done, seconds = kept['done'], kept['seconds']
    tokens, answers = draw_set(sizes[0], lengths, seed)
    for step, chosen in zip(range(done, steps), batches(sizes[0], batch, seed, done), strict=False):
        start = time.perf_counter()
        for group in optimizer.param_groups:
            group['lr'] = LR * min(1, (step + 1) / WARMUP)
        loss = F.cross_entropy(model(tokens[chosen]), answers[chosen])
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        seconds += time.perf_counter() - start
        losses.append(loss.item())
        if (step + 1) % TOLD == 0:
            print(f'{name}: step {step + 1} of {steps}, loss {mean(losses[-TOLD:]):.3f}', flush=True)
        if (step + 1) % 20 == 0 or step + 1 == steps:
            keep = dict(about=about, model=model.state_dict(), optimizer=optimizer.state_dict())
            with whole_file(state) as partial:
                torch.save(dict(keep, done=step + 1, seconds=seconds), partial)
    done = max(done, steps)
    top1, common = evaluate(model, *draw_set(sizes[1], lengths, 10_000), batch)
    parameters = sum(p.numel() for p in model.parameters())
    return dict(about, steps=done, top1=top1, most_common=common, seconds_a_step=seconds / done, parameters=parameters)


@torch.no_grad()
def evaluate(model: nn.Module, tokens: Tensor, answers: Tensor, batch: int) -> tuple[float, float]:
    """Top-1, and what always the most common answer would reach, in per cent."""
    model.eval()
    guesses = torch.cat([model(part).argmax(-1) for part in tokens.split(batch)])
    top1 = (guesses == answers).float().mean().item()
    return 100 * top1, 100 * answers.bincount().max().item() / len(answers)


def table(results: Sequence[dict[str, Any]]) -> str:
    """Markdown, beside the paper's figures, which are of another training."""
    lines = ['| attention | steps of lists | top-1 | seconds a step | paper |', '|---|---|---|---|---|']
    for row in results:
        paper = PAPER.get(row['attention'])
        steps = f'{row["steps"]} of {row["batch"]}'
        cells = [row['attention'], steps, f'{row["top1"]:.1f} %', f'{row["seconds_a_step"]:.2f}']
        lines.append(f'| {" | ".join(cells)} | {"" if paper is None else f"{paper:.2f} %"} |')
    return '\n'.join(lines)


def save(results: Sequence[dict[str, Any]], out: Path) -> list[dict[str, Any]]:
    """``<out>.json`` and ``<out>.md``: these rows, and those of other attentions that the file has."""
    file, rows = out.with_suffix('.json'), {row['attention']: row for row in results}
    if file.is_file():
        rows = {row['attention']: row for row in json.loads(file.read_text())} | rows
    kept = sorted(rows.values(), key=lambda row: list(ATTENTIONS).index(row['attention']))
    out.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(kept, indent=1) + '\n')
    out.with_suffix('.md').write_text(table(kept) + '\n', encoding='utf-8')
    return kept
