"""What people write themselves: ten lines of torch. ``python bench/torch_script.py LEFT REFERENCE`` (SGLang dumps)."""

import sys
from pathlib import Path

import torch

for left in sorted(Path(sys.argv[1]).glob("*.pt")):
    x = torch.load(left, weights_only=True)["value"].float()
    y = torch.load(Path(sys.argv[2]) / left.name, weights_only=True)["value"].float()
    cosine = torch.nn.functional.cosine_similarity(x, y, dim=-1)
    print(left.name, "cosine", cosine.mean().item(), cosine.min().item(), "max abs", (x - y).abs().max().item())
    print("  norms", x.norm(dim=-1).mean().item(), y.norm(dim=-1).mean().item())
