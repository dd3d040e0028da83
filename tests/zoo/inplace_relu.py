"""ReLU(inplace=True) right after Linear and BatchNorm, and a residual `+=`: a full backward hook would break it."""

import torch
from torch import nn

torch.manual_seed(7)


class Residual(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn = nn.BatchNorm2d(channels)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x):
        out = self.bn(self.conv(x))
        out += x
        return self.relu(out)


model = nn.Sequential(
    nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(inplace=True), Residual(8), nn.Flatten(),
    nn.Linear(8 * 8 * 8, 32), nn.ReLU(inplace=True), nn.Dropout(0.5), nn.Linear(32, 10),
)  # fmt: skip
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True)
for step in range(6):
    images, labels = torch.randn(16, 3, 8, 8), torch.randint(0, 10, (16,))
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(images), labels)
    loss.backward()
    optimizer.step()
    print("loss", step, loss.item().hex())
