"""An optimizer over bare tensors, no module anywhere: matrix factorisation."""

import torch

torch.manual_seed(25)

ratings = torch.randn(40, 3) @ torch.randn(3, 30)
left = (0.1 * torch.randn(40, 3)).requires_grad_()
right = (0.1 * torch.randn(30, 3)).requires_grad_()
bias = torch.zeros((), requires_grad=True)
optimizer = torch.optim.Adam([left, right, bias], lr=0.05)

for step in range(12):
    loss = (left @ right.T + bias - ratings).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print("loss", step, loss.item().hex())
