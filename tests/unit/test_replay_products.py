"""The product that a replay is made of: the same numbers by whichever library computes it."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from drafttrace.compare.replay import products


@pytest.mark.parametrize("shape", [(0, 12), (1, 12), (40, 12), (3, 40, 12), (2, 3, 40, 12)], ids=repr)
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("kernel", [True, False])
def test_a_product_is_the_one_of_torch(
    shape: tuple[int, ...], biased: bool, kernel: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not kernel:
        monkeypatch.setattr(products, "_KERNEL", None)
    generator = torch.Generator().manual_seed(3)
    x, weight = torch.randn(shape, generator=generator), torch.randn(7, 24, generator=generator)[:, 12:]
    bias = torch.randn(7, generator=generator) if biased else None
    with torch.inference_mode():
        made = products.linear(x, weight, bias)
    assert made.shape == (*shape[:-1], 7) and torch.allclose(made, F.linear(x, weight, bias), atol=1e-5)


def test_other_number_formats_are_left_to_torch() -> None:
    x, weight = torch.randn(40, 12).double(), torch.randn(7, 12).double()
    assert products.linear(x, weight).dtype is torch.float64
