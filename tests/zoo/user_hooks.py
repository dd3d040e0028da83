"""The user's own hooks: one replaces a module's output, one clips a gradient, one counts optimizer steps."""

import torch
from torch import nn

torch.manual_seed(141)
steps = 0


def scale_output(module, args, output):
    return output * 0.5


def count(optimizer, args, kwargs):
    global steps
    steps += 1


model = nn.Sequential(nn.Linear(6, 24), nn.ReLU(), nn.Linear(24, 1))
model[0].register_forward_hook(scale_output)
model[2].register_full_backward_hook(lambda module, grad_in, grad_out: None)
model[2].weight.register_hook(lambda grad: grad.clamp(-0.1, 0.1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
optimizer.register_step_post_hook(count)
for step in range(8):
    x = torch.randn(32, 6)
    loss = (model(x).squeeze(1) - x.sum(1)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print("loss", step, loss.item().hex(), steps)
