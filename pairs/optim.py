"""The optimiser of the tiny models: Muon for the stacked matrices, Adam for everything else."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor, nn

_NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)


def _orthogonal(matrices: Tensor, steps: int = 5) -> Tensor:
    """Replace the singular values of each [.., a, b] matrix with values near 1."""
    a, b, c = _NEWTON_SCHULZ
    tall = matrices.shape[-2] > matrices.shape[-1]
    x = matrices.mT if tall else matrices
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(steps):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.mT if tall else x


class MuonAdam:
    """Muon on parameters of three or more dimensions (stacks of matrices), Adam on the rest."""

    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        matrix_rate: float,
        other_rate: float,
        decay: float = 0.01,
    ) -> None:
        everything = list(parameters)
        self._matrices = [p for p in everything if p.ndim >= 3]
        others = [p for p in everything if p.ndim < 3]
        self._momentum = [torch.zeros_like(p) for p in self._matrices]
        self._adam = torch.optim.AdamW(others, lr=other_rate, betas=(0.9, 0.98), weight_decay=0.0, foreach=True)
        self._matrix_rate, self._other_rate, self._decay = matrix_rate, other_rate, decay

    @torch.no_grad()
    def step(self, scale: float) -> None:
        """One update, with both learning rates multiplied by `scale`; clears the gradients."""
        rate = self._matrix_rate * scale
        for p, momentum in zip(self._matrices, self._momentum, strict=True):
            if p.grad is None:
                continue
            momentum.mul_(0.95).add_(p.grad)
            update = _orthogonal(p.grad.add(momentum, alpha=0.95))
            p.mul_(1 - rate * self._decay)
            p.add_(update, alpha=-rate * 0.2 * math.sqrt(max(p.shape[-2:])))
            p.grad = None
        for group in self._adam.param_groups:
            group["lr"] = self._other_rate * scale
        self._adam.step()
        self._adam.zero_grad(set_to_none=True)


def schedule(step: int, steps: int, warmup: int, flat: float = 0.25) -> float:
    """Linear warm-up, level for the first part, then linear to zero."""
    if step < warmup:
        return (step + 1) / warmup
    return min(1.0, (steps - step) / ((1 - flat) * steps))
