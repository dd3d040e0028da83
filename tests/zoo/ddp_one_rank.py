"""DDP in which only rank 1 augments from an unseeded generator; run by torchrun. `--fixed` seeds it."""

import sys

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    seed = None if rank == 1 and "--fixed" not in sys.argv else rank
    rng = np.random.default_rng(seed)
    torch.manual_seed(72)
    model = DDP(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(6):
        x = torch.randn(32, 8) + 0.01 * torch.from_numpy(rng.standard_normal((32, 8), dtype=np.float32))
        loss = (model(x).squeeze(1) - x.sum(1)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total = loss.detach().clone()
        dist.all_reduce(total)
        if rank == 0:
            print("loss", step, total.item().hex())
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
