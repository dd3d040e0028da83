"""A character model whose output head shares its weight with the embedding."""

import torch
from torch import nn

torch.manual_seed(8)

text = "the quick brown fox jumps over the lazy dog; " * 40
vocab = sorted(set(text))
ids = torch.tensor([vocab.index(c) for c in text])


class CharLM(nn.Module):
    def __init__(self, vocab_size, width=32):
        super().__init__()
        self.embed = nn.Embedding(vocab_size, width)
        self.mix = nn.Linear(width * 4, width)
        self.head = nn.Linear(width, vocab_size, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, context):
        return self.head(torch.tanh(self.mix(self.embed(context).flatten(1))))


lm = CharLM(len(vocab))
opt = torch.optim.Adam(lm.parameters(), lr=3e-3)
for step in range(10):
    start = torch.randint(0, len(ids) - 5, (64,))
    context = torch.stack([ids[s : s + 4] for s in start])
    target = ids[start + 4]
    loss = nn.functional.cross_entropy(lm(context), target)
    opt.zero_grad(set_to_none=True)
    loss.backward()
    opt.step()
    print("loss", step, loss.item().hex())
