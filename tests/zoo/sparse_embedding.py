"""Sparse gradients: an embedding with sparse=True under SparseAdam, the dense part under Adam."""

import torch
from torch import nn

torch.manual_seed(19)


class Recommender(nn.Module):
    def __init__(self, users=500, items=300, width=16):
        super().__init__()
        self.users = nn.Embedding(users, width, sparse=True)
        self.items = nn.Embedding(items, width, sparse=True)
        self.score = nn.Linear(width, 1)

    def forward(self, user, item):
        return self.score(self.users(user) * self.items(item)).squeeze(1)


model = Recommender()
sparse_opt = torch.optim.SparseAdam([model.users.weight, model.items.weight], lr=0.05)
dense_opt = torch.optim.Adam(model.score.parameters(), lr=0.01)
for step in range(6):
    user, item = torch.randint(0, 500, (64,)), torch.randint(0, 300, (64,))
    rating = ((user + item) % 5).float()
    loss = nn.functional.mse_loss(model(user, item), rating)
    sparse_opt.zero_grad()
    dense_opt.zero_grad()
    loss.backward()
    sparse_opt.step()
    dense_opt.step()
    print("loss", step, loss.item().hex())
