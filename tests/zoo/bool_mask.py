"""Boolean masks as module inputs, one of them by keyword, and padding of unequal lengths."""

import torch
from torch import nn

torch.manual_seed(22)


class MaskedMean(nn.Module):
    def __init__(self):
        super().__init__()
        self.attend = nn.MultiheadAttention(16, 2, batch_first=True)
        self.out = nn.Linear(16, 2)

    def forward(self, tokens, *, padding, causal=None):
        mixed, _ = self.attend(tokens, tokens, tokens, key_padding_mask=padding, attn_mask=causal)
        keep = (~padding).unsqueeze(-1)
        return self.out((mixed * keep).sum(1) / keep.sum(1))


model = MaskedMean()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
causal = torch.ones(10, 10, dtype=torch.bool).triu(1)
for step in range(6):
    lengths = torch.randint(1, 11, (12,))
    padding = torch.arange(10) >= lengths.unsqueeze(1)
    tokens = torch.randn(12, 10, 16)
    loss = nn.functional.cross_entropy(model(tokens, padding=padding, causal=causal), lengths % 2)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print("loss", step, loss.item().hex())
