"""torch.func: per-sample gradients by vmap over grad of a functional call, then a plain optimizer (as in DP-SGD)."""

import torch
from torch import nn
from torch.func import functional_call, grad, vmap

torch.manual_seed(38)

model = nn.Sequential(nn.Linear(5, 16), nn.Tanh(), nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def sample_loss(params, x, y):
    return (functional_call(model, params, (x.unsqueeze(0),)).squeeze() - y).pow(2)


per_sample = vmap(grad(sample_loss), in_dims=(None, 0, 0))
for step in range(6):
    x = torch.randn(24, 5)
    y = x.sum(1)
    params = {name: p.detach() for name, p in model.named_parameters()}
    grads = per_sample(params, x, y)
    norms = torch.stack([g.flatten(1).norm(dim=1) for g in grads.values()]).norm(dim=0)
    clip = (1.0 / norms).clamp(max=1.0)
    for name, p in model.named_parameters():
        noise = 0.01 * torch.randn_like(p)
        p.grad = torch.einsum("b,b...->...", clip, grads[name]) / len(x) + noise
    optimizer.step()
    with torch.no_grad():
        print("loss", step, (model(x).squeeze(1) - y).pow(2).mean().item().hex())
