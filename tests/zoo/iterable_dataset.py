"""A stream of samples: IterableDataset, split over two workers; there are no indices to sample."""

import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, get_worker_info


class Walk(IterableDataset):
    """A random walk; each worker yields its own walks from its own generator."""

    def __init__(self, walks=64, length=12):
        self.walks, self.length = walks, length

    def __iter__(self):
        info = get_worker_info()
        first, stride = (info.id, info.num_workers) if info else (0, 1)
        for number in range(first, self.walks, stride):
            generator = torch.Generator().manual_seed(number)
            path = torch.randn(self.length + 1, generator=generator).cumsum(0)
            yield {"past": path[:-1], "next": path[-1]}


def main():
    torch.manual_seed(14)
    loader = DataLoader(Walk(), batch_size=8, num_workers=2)
    model = nn.Linear(12, 1)
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.05)
    for epoch in range(2):
        for batch in loader:
            loss = nn.functional.mse_loss(model(batch["past"]).squeeze(1), batch["next"])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            print("loss", epoch, loss.item().hex())


if __name__ == "__main__":
    main()
