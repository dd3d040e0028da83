"""Model and optimizer live only as attributes of a trainer object."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Trainer:
    def __init__(self, seed):
        torch.manual_seed(seed)
        self.model = nn.Sequential(nn.Linear(6, 24), nn.ReLU(), nn.Linear(24, 1))
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=5e-3)
        x = torch.rand(120, 6)
        self.train_loader = DataLoader(TensorDataset(x, x.max(1).values), batch_size=24, shuffle=True)

    def training_step(self, batch):
        x, y = batch
        return nn.functional.l1_loss(self.model(x).squeeze(-1), y)

    def fit(self, epochs):
        for epoch in range(epochs):
            for batch in self.train_loader:
                self.optimizer.zero_grad()
                loss = self.training_step(batch)
                loss.backward()
                self.optimizer.step()
            print("loss", epoch, loss.item().hex())


Trainer(seed=24).fit(epochs=2)
