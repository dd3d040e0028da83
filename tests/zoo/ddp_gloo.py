"""DistributedDataParallel on gloo: torchrun --nproc-per-node 2 ddp_gloo.py"""

import hashlib

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(10)

    x = torch.randn(256, 10)
    dataset = TensorDataset(x, (x.sum(1, keepdim=True) > 0).float())
    sampler = DistributedSampler(dataset, seed=10)
    loader = DataLoader(dataset, batch_size=16, sampler=sampler)

    model = DDP(nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 1)))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    torch.manual_seed(100 + rank)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for inputs, labels in loader:
            noisy = inputs + 0.1 * torch.randn_like(inputs)
            loss = nn.functional.binary_cross_entropy_with_logits(model(noisy), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    weights = torch.cat([p.detach().flatten() for p in model.parameters()])
    digest = hashlib.sha256(weights.numpy().tobytes()).hexdigest()[:16]
    gathered = [None, None]
    dist.all_gather_object(gathered, (rank, loss.item().hex(), digest))
    if rank == 0:
        for row in gathered:
            print("params", *row)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
