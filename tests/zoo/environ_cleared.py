"""Clears its environment, changes directory and starts a Python child that imports torch; then trains."""

import os
import subprocess
import sys
import tempfile

import torch
from torch import nn

os.environ.clear()
torch.manual_seed(140)
with tempfile.TemporaryDirectory() as folder:
    os.chdir(folder)
    child = "import torch; torch.manual_seed(0); print('child', torch.randn(3).tolist())"
    subprocess.run([sys.executable, "-c", child], check=True)
    os.chdir("/")

model = nn.Linear(6, 1)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for step in range(6):
    x = torch.randn(32, 6)
    loss = (model(x).squeeze(1) - x.sum(1)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print("loss", step, loss.item().hex())
