"""Inputs and buffers of awkward layouts: empty, 0-dim, expanded, strided, flipped, sparse, bool, uint8, float64."""

import torch
from torch import nn

torch.manual_seed(37)


class Odd(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(4, 3)
        self.register_buffer("nothing", torch.empty(0, 5))
        self.register_buffer("count", torch.tensor(0))
        self.register_buffer("wide", torch.arange(3.0).expand(7, 3))
        self.register_buffer("adjacency", torch.eye(6).to_sparse())

    def forward(self, strided, *, empty, scalar, mask, pixels, nested):
        self.count += 1
        out = self.lin(torch.sparse.mm(self.adjacency, strided)) * scalar + self.wide[0]
        out = torch.cat([out, empty]) + pixels.float().mean() / 255 + nested["pair"][0].sum().float()
        return out.masked_fill(mask.unsqueeze(1), 0.0), out.t()[::2], empty


model = Odd()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2, amsgrad=True)
for step in range(6):
    out, view, empty = model(
        torch.randn(4, 12)[:, ::2].t(),
        empty=torch.empty(0, 3),
        scalar=torch.tensor(0.5),
        mask=torch.arange(6) == step,
        pixels=torch.randint(0, 256, (2, 5, 5), dtype=torch.uint8).flip(0),
        nested={"pair": (torch.ones(2, dtype=torch.float64), None), "name": "odd"},
    )
    loss = out.pow(2).mean() + view.abs().mean() + empty.sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print("loss", step, loss.item().hex())
