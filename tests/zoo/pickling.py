"""Deep copies, pickles and reloads the whole model and optimizer in mid-training: nothing foreign may stick to them."""

import copy
import io

import torch
from torch import nn

torch.manual_seed(34)

model = nn.Sequential(nn.Linear(6, 20), nn.ReLU(), nn.Linear(20, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for step in range(9):
    x = torch.randn(32, 6)
    loss = (model(x).squeeze(1) - x.sum(1)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print("loss", step, loss.item().hex())
    if step == 2:
        model, optimizer = copy.deepcopy((model, optimizer))
    if step == 5:
        file = io.BytesIO()
        torch.save({"model": model, "optimizer": optimizer.state_dict()}, file)
        file.seek(0)
        saved = torch.load(file, weights_only=False)
        model = saved["model"]
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
        optimizer.load_state_dict(saved["optimizer"])
