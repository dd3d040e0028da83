"""An LSTM on packed sequences, its state carried from batch to batch; module outputs are nested tuples."""

import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

torch.manual_seed(27)


class Forecaster(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(3, 16, num_layers=2, dropout=0.1, batch_first=True)
        self.out = nn.Linear(16, 3)

    def forward(self, x, lengths, state=None):
        packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        hidden, state = self.lstm(packed, state)
        hidden, _ = pad_packed_sequence(hidden, batch_first=True, total_length=x.shape[1])
        return self.out(hidden), state


model = Forecaster()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
state = None
for step in range(6):
    x = torch.randn(8, 12, 3).cumsum(1)
    lengths = torch.randint(4, 13, (8,))
    prediction, state = model(x, lengths, state)
    state = tuple(s.detach() for s in state)
    loss = nn.functional.mse_loss(prediction[:, :-1], x[:, 1:])
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    optimizer.step()
    print("loss", step, loss.item().hex())
