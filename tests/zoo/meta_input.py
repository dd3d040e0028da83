"""A module takes a meta tensor as a template of the output's shape: it has no bytes to digest."""

import torch
from torch import nn

torch.manual_seed(85)


class LikeTemplate(nn.Module):
    def __init__(self):
        super().__init__()
        self.project = nn.Linear(6, 12)

    def forward(self, x, template):
        return self.project(x).view(template.shape)


model = LikeTemplate()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
template = torch.empty(16, 3, 4, device="meta")
for step in range(6):
    loss = (model(torch.randn(16, 6), template) - 1).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print("loss", step, loss.item().hex())
