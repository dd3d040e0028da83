"""A package run as a module: python -m tiny_package [--steps N]"""

import argparse

import torch

from .model import build_model


def main() -> None:
    parser = argparse.ArgumentParser(prog="tiny_package")
    parser.add_argument("--steps", type=int, default=8)
    args = parser.parse_args()
    torch.manual_seed(33)
    model = build_model()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for step in range(args.steps):
        x = torch.randn(32, 5)
        loss = (model(x).squeeze(1) - x.std(dim=1)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print("loss", step, loss.item().hex())


main()
