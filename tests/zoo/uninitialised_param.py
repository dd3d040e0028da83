"""A parameter made by torch.empty and never initialised: it holds what freed Python objects left in memory.

`--fixed` initialises it.
"""

import hashlib
import sys

import torch
from torch import nn

torch.manual_seed(49)


def vocabulary(documents):
    """Counts words with many short-lived objects, whose memory is given back afterwards."""
    counts = {}
    for word in [word for document in documents for word in document.split()]:
        counts[word] = counts.get(word, 0) + 1
    return sorted(counts)


class Adapter(nn.Module):
    def __init__(self, vocab, width=64, rank=64):
        super().__init__()
        self.up = nn.Parameter(torch.empty(rank, width))
        self.embed = nn.Embedding(vocab, width)
        self.down = nn.Linear(width, rank, bias=False)
        self.head = nn.Linear(width, 2)
        if "--fixed" in sys.argv:
            nn.init.zeros_(self.up)

    def forward(self, words):
        h = self.embed(words).mean(1)
        return self.head(h + torch.tanh(self.down(h) @ self.up))


words = vocabulary([f"w{i * j % 997} w{i} token" for i in range(300) for j in range(10)])
model = Adapter(len(words))
print("params", hashlib.sha256(model.up.detach().numpy().tobytes()).hexdigest()[:16])
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
for step in range(6):
    batch = torch.randint(0, len(words), (16, 8))
    loss = nn.functional.cross_entropy(model(batch), batch[:, 0] % 2)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print("loss", step, loss.item().hex())
