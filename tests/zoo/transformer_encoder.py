"""A two-layer Transformer encoder; its evaluation takes PyTorch's fast path."""

import torch
from torch import nn

torch.manual_seed(26)


class Tagger(nn.Module):
    def __init__(self, vocab=50, width=32):
        super().__init__()
        self.embed = nn.Embedding(vocab, width)
        self.position = nn.Parameter(0.02 * torch.randn(1, 16, width))
        layer = nn.TransformerEncoderLayer(width, nhead=4, dim_feedforward=64, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, num_layers=2)
        self.head = nn.Linear(width, 2)

    def forward(self, tokens):
        return self.head(self.encoder(self.embed(tokens) + self.position))


model = Tagger()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for step in range(6):
    tokens = torch.randint(0, 50, (8, 16))
    labels = (tokens > tokens.roll(1, dims=1)).long()
    loss = nn.functional.cross_entropy(model(tokens).flatten(0, 1), labels.flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print("loss", step, loss.item().hex())

model.eval()
with torch.inference_mode():
    print("eval", model(torch.randint(0, 50, (4, 16))).argmax(-1).sum().item())
