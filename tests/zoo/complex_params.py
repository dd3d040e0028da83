"""Complex parameters, an FFT layer and a lazily conjugated activation."""

import torch
from torch import nn

torch.manual_seed(20)


class SpectralFilter(nn.Module):
    def __init__(self, length=32):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(length // 2 + 1, dtype=torch.complex64) * 0.1)

    def forward(self, signal):
        return torch.fft.rfft(signal).conj() * self.weight


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.filter = SpectralFilter()
        self.phase = nn.Parameter(torch.ones(1, dtype=torch.complex64))

    def forward(self, signal):
        return torch.fft.irfft(self.filter(signal).conj() * self.phase, n=32)


model = Net()
optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
for step in range(8):
    signal = torch.randn(16, 32)
    loss = (model(signal) - signal.roll(3, dims=1)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print("loss", step, loss.item().hex())
