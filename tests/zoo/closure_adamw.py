"""The way Lightning drives an optimizer: forward and backward live in a closure given to AdamW's step."""

import torch
from torch import nn

torch.manual_seed(6)


class LitRegressor(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 32), nn.SiLU(), nn.Linear(32, 1))

    def training_step(self, batch):
        x, y = batch
        return nn.functional.smooth_l1_loss(self.body(x).squeeze(-1), y)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=2e-3, weight_decay=0.05)


def fit(module, batches):
    optimizer = module.configure_optimizers()
    for step, batch in enumerate(batches):

        def closure(batch=batch):
            loss = module.training_step(batch)
            optimizer.zero_grad()
            loss.backward()
            return loss

        loss = optimizer.step(closure=closure)
        print("loss", step, loss.item().hex())


data = torch.randn(10, 32, 6)
fit(LitRegressor(), [(x, x.sum(1).sin()) for x in data])
