"""Modules that return a dataclass, a dict or a named tuple, as the transformers library does."""

from collections import OrderedDict
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import nn

torch.manual_seed(142)


class Encoded(NamedTuple):
    hidden: torch.Tensor
    pooled: torch.Tensor


class ModelOutput(OrderedDict):
    """A dict whose keys are attributes too."""

    __getattr__ = OrderedDict.__getitem__


@dataclass
class HeadOutput:
    logits: torch.Tensor
    loss: torch.Tensor | None = None


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(6, 16)

    def forward(self, x):
        hidden = self.lin(x).tanh()
        return Encoded(hidden, hidden.mean(1))


class Head(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(16, 2)

    def forward(self, pooled, labels=None):
        logits = self.lin(pooled)
        return HeadOutput(logits, nn.functional.cross_entropy(logits, labels) if labels is not None else None)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder, self.head = Encoder(), Head()

    def forward(self, batch):
        encoded = self.encoder(batch["x"])
        head = self.head(encoded.pooled, labels=batch["labels"])
        return ModelOutput(loss=head.loss, logits=head.logits, hidden=[encoded.hidden])


model = Model()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True)
for step in range(6):
    x = torch.randn(16, 5, 6)
    output = model({"x": x, "labels": (x.sum((1, 2)) > 0).long()})
    optimizer.zero_grad()
    output.loss.backward()
    optimizer.step()
    print("loss", step, output.loss.item().hex())
