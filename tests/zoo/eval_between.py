"""Evaluates under no_grad between the steps, in eval mode, on a second DataLoader that owns its generator."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split

torch.manual_seed(31)

x = torch.randn(180, 12)
data = TensorDataset(x, (x[:, :3].sum(1) > 0).long())
train_set, val_set = random_split(data, [140, 40], generator=torch.Generator().manual_seed(31))
train_loader = DataLoader(train_set, batch_size=20, shuffle=True, generator=torch.Generator().manual_seed(1))
val_loader = DataLoader(val_set, batch_size=20, generator=torch.Generator().manual_seed(2))

model = nn.Sequential(nn.Linear(12, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.3), nn.Linear(32, 2))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)


@torch.no_grad()
def accuracy():
    model.eval()
    hits = sum((model(inputs).argmax(1) == labels).sum().item() for inputs, labels in val_loader)
    model.train()
    return hits / len(val_set)


for step, (inputs, labels) in enumerate(train_loader):
    loss = nn.functional.cross_entropy(model(inputs), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print("loss", step, loss.item().hex(), "accuracy", accuracy())
