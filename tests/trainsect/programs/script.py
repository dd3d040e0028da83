"""A script that knows nothing of Trainsect: `script.py WORKERS`. Logs its evaluations to metrics.jsonl and stdout."""

import json
import sys

import torch
from torch import nn
from torch.utils.data import ConcatDataset, DataLoader, TensorDataset


def main(workers):
    torch.manual_seed(0)  # and neither python's nor numpy's generator: it draws from none of them
    parts = [TensorDataset(torch.randn(24, 4), torch.randint(0, 2, (24,))) for _ in range(3)]
    loader = DataLoader(ConcatDataset(parts), batch_size=8, shuffle=True, num_workers=workers)
    held_out = DataLoader(parts[0], batch_size=12)
    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.2), nn.ReLU(), nn.Linear(8, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 5)
    step = 0
    with open("metrics.jsonl", "w") as log:
        for _ in range(2):
            for x, y in loader:
                if step % 4 == 0:
                    model.eval()
                    with torch.no_grad():
                        total = sum(nn.functional.cross_entropy(model(a), b).item() for a, b in held_out)
                    model.train()
                    log.write(json.dumps({"step": step, "eval_loss": total}) + "\n")
                    print(f"eval at {step}: {total!r}")
                optimizer.zero_grad()
                loss = nn.functional.cross_entropy(model(x), y)
                loss.backward()
                optimizer.step()
                scheduler.step()
                log.write(json.dumps({"step": step, "train_loss": loss.item()}) + "\n")
                step += 1


if __name__ == "__main__":
    main(int(sys.argv[1]))
