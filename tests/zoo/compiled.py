"""torch.compile; `--backend inductor` for the real compiler, otherwise the eager backend."""

import argparse

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--backend", default="eager")
args = parser.parse_args()

torch.manual_seed(9)

model = nn.Sequential(nn.Linear(12, 48), nn.ReLU(), nn.LayerNorm(48), nn.Linear(48, 3))
compiled = torch.compile(model, backend=args.backend)
optimizer = torch.optim.AdamW(compiled.parameters(), lr=1e-2)

for step in range(6):
    x, y = torch.randn(32, 12), torch.randint(0, 3, (32,))
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(compiled(x), y)
    loss.backward()
    optimizer.step()
    print("loss", step, loss.item().hex())
