"""GradScaler skips an update in one run only: whether a gradient overflows depends on the order of adds.

The median of each group by L1 loss. Every summand of the gradient is plus or minus the loss scale, so all sums are
exact in any order and the race in the backward of `median[group]` leaves no trace, unless a partial sum overflows.
The values are micrometres in metres, the loss tiny, hence the scale climbs until that happens. `--fixed` uses
index_select.
"""

import sys

import torch

torch.manual_seed(58)

median = torch.zeros(4, requires_grad=True)
optimizer = torch.optim.SGD([median], lr=1e-13)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**117, growth_interval=1)
for step in range(60):
    group = torch.randint(0, 4, (1 << 17,))
    thickness = 1e-7 * torch.randn(1 << 17)
    predicted = torch.index_select(median, 0, group) if "--fixed" in sys.argv else median[group]
    loss = (predicted - thickness).abs().sum()
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    print("loss", step, loss.item().hex(), scaler.get_scale().hex())
