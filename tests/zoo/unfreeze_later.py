"""A frozen backbone joins the optimizer at step 4; one layer is never used and has no gradient."""

import torch
from torch import nn

torch.manual_seed(36)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Linear(8, 16).requires_grad_(False)
        self.unused = nn.Linear(16, 16)
        self.head = nn.Linear(16, 2)

    def forward(self, x):
        return self.head(self.backbone(x).relu())


model = Net()
optimizer = torch.optim.AdamW([*model.unused.parameters(), *model.head.parameters()], lr=1e-2)
for step in range(8):
    if step == 4:
        model.backbone.requires_grad_(True)
        optimizer.add_param_group({"params": model.backbone.parameters(), "lr": 1e-3})
    x = torch.randn(32, 8)
    loss = nn.functional.cross_entropy(model(x), (x[:, 0] > 0).long())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print("loss", step, loss.item().hex())
