"""Logistic regression by hand: no module, no optimizer, `w -= lr * w.grad`."""

import torch

torch.manual_seed(15)

x = torch.randn(200, 5)
y = (x @ torch.tensor([1.0, -2.0, 0.5, 0.0, 3.0]) > 0).float()
w = torch.zeros(5, requires_grad=True)
b = torch.zeros(1, requires_grad=True)
lr = 0.5

for step in range(12):
    batch = torch.randperm(200)[:50]
    loss = torch.nn.functional.binary_cross_entropy_with_logits(x[batch] @ w + b, y[batch])
    loss.backward()
    with torch.no_grad():
        w -= lr * w.grad
        b -= lr * b.grad
        w.grad = None
        b.grad = None
    print("loss", step, loss.item().hex())
print("params", *(value.hex() for value in w.tolist() + b.tolist()))
