"""Small programs that the capture tests run in fresh processes, and what their trails hold."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from detaudit.core.env import Settings
from detaudit.launch.child import child_environment
from detaudit.trail.reader import TrailReader

TRAIN = """
import torch
from torch import nn
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 1))
opt = torch.optim.AdamW(net.parameters(), lr=1e-2)
def step(number):
    x = torch.randn(4, 8)
    loss = net(x).square().mean()
    opt.zero_grad(); loss.backward(); opt.step()
    print(number, loss.item().hex(), flush=True)
"""
"""Defines `net`, `opt` and `step(number)`."""


@dataclass
class Recorded:
    """A finished child: its exit status, output, and directory of trails."""

    status: int
    stdout: str
    stderr: str
    directory: Path

    def trail(self, name: str = "main") -> TrailReader:
        return TrailReader(self.directory / f"{name}.trail")

    @property
    def trails(self) -> list[str]:
        return sorted(path.stem for path in self.directory.glob("*.trail"))


def command(source: str) -> list[str]:
    return [sys.executable, "-c", source]


def record(
    source: str, directory: Path, environ: dict[str, str] | None = None, sound: bool = True, **settings: object
) -> Recorded:
    """Run a program under the recorder, which must have worked if `sound`. `settings` are fields of Settings."""
    directory.mkdir(parents=True, exist_ok=True)
    env = child_environment(Settings(str(directory), **settings), {**os.environ, **(environ or {})})  # type: ignore[arg-type]
    done = subprocess.run(command(source), env=env, capture_output=True, text=True, check=False)
    assert sound != bool(list(directory.glob("recorder-error*"))), done.stderr
    return Recorded(done.returncode, done.stdout, done.stderr, directory)


def plain(source: str) -> str:
    """The stdout of a program without the recorder."""
    return subprocess.run(command(source), capture_output=True, text=True, check=True).stdout
