"""DataLoader(in_order=False): batches come as the workers finish them. `--fixed` keeps the order."""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Clips(Dataset):
    """Clips of unequal length, so that decoding takes unequal time."""

    def __init__(self, count=160):
        generator = torch.Generator().manual_seed(56)
        self.lengths = torch.randint(20, 400, (count,), generator=generator).tolist()

    def __len__(self):
        return len(self.lengths)

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        clip = torch.zeros(8)
        for _ in range(self.lengths[index]):
            clip = 0.99 * clip + torch.randn(8, generator=generator)
        return clip, float(self.lengths[index]) / 400


def main():
    torch.manual_seed(56)
    loader = DataLoader(Clips(), batch_size=4, shuffle=True, num_workers=2, in_order="--fixed" in sys.argv)
    model = nn.Sequential(nn.Linear(8, 24), nn.ReLU(), nn.Linear(24, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for clips, lengths in loader:
        loss = nn.functional.mse_loss(model(clips).squeeze(1), lengths.float())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print("loss", loss.item().hex())


if __name__ == "__main__":
    main()
