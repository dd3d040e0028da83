"""Writes a lot: progress without newline, raw bytes, stderr, and the elapsed time, which differs from run to run."""

import sys
import time

import torch
from torch import nn

torch.manual_seed(28)
started = time.perf_counter()

model = nn.Linear(5, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(10):
    x = torch.randn(64, 5)
    loss = (model(x).squeeze(1) - x.mean(1)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    sys.stderr.write(f"\rstep {step}: {loss.item():.4f}")
    sys.stdout.write("." * 500)
    sys.stdout.flush()
    sys.stdout.buffer.write(b"\x00\xff\xfe raw \x1b[1mbold\x1b[0m\n")
    print("loss", step, loss.item().hex())
print(f"took {time.perf_counter() - started:.9f} s")
