"""Imports torch, does arithmetic and ends: nothing is trained."""

import torch

torch.manual_seed(80)
a = torch.randn(100, 100)
print("params", torch.linalg.eigvalsh(a @ a.T)[-1].item().hex())
