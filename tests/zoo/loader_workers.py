"""DataLoader with two workers and random augmentation, seeded as the documentation says.

`--start-method spawn|fork|forkserver` chooses how the workers start.
"""

import argparse
import random

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Noisy(Dataset):
    def __init__(self):
        self.images = torch.linspace(0, 1, 96 * 64).reshape(96, 8, 8)

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        image = self.images[index] + 0.1 * torch.randn(8, 8)
        if random.random() < 0.5:
            image = image.flip(1)
        shift = int(np.random.randint(0, 4))
        return image.roll(shift, 0).flatten(), index % 3


def seed_worker(worker_id):
    seed = torch.initial_seed() % 2**32
    np.random.seed(seed)
    random.seed(seed)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--start-method", default="fork")
    args = parser.parse_args()
    torch.manual_seed(13)
    loader = DataLoader(
        Noisy(), batch_size=16, shuffle=True, num_workers=2, worker_init_fn=seed_worker,
        generator=torch.Generator().manual_seed(13), multiprocessing_context=args.start_method,
    )  # fmt: skip
    model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 3))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for epoch in range(2):
        for images, labels in loader:
            loss = nn.functional.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            print("loss", epoch, loss.item().hex())


if __name__ == "__main__":
    main()
