"""What `detaudit verify --self` shows: golden vectors on the present devices, and a training run that does not notice
being watched. Loads torch."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import torch

from detaudit.core.env import Settings
from detaudit.digest import golden
from detaudit.digest.host import tensor_digest
from detaudit.digest.paths import choose, unproved
from detaudit.digest.select import prove
from detaudit.digest.stats import leaf_stats
from detaudit.launch.child import child_environment

TRAINING = """
import torch
torch.manual_seed(0)
nn = torch.nn
net = nn.Sequential(nn.Linear(8, 32), nn.ReLU(inplace=True), nn.Dropout(0.2), nn.Linear(32, 1))
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
data = torch.utils.data.TensorDataset(torch.randn(64, 8), torch.randn(64, 1))
for features, target in torch.utils.data.DataLoader(data, batch_size=8, shuffle=True):
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(net(features), target)
    loss.backward()
    optimizer.step()
    print(loss.item().hex())
"""
"""Dropout, shuffling, an in-place ReLU: what a recorder that draws a random number or saves a tensor would disturb."""


def self_checks() -> Iterator[tuple[str, bool, str]]:
    """(what, failed, detail) for each check."""
    for device in ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]:
        yield _digest_check(device)
    yield _stats_check()
    yield _watched_check()


def _digest_check(device: str) -> tuple[str, bool, str]:
    if device != "cpu":
        path, why = choose(torch.device(device))
        failures = unproved(path, device)
        done = f"{len(golden.DIGESTS)} golden vectors by {path.name}" + (f" ({why})" if why else "")
        return f"digest on {device}", bool(failures), "; ".join(failures) or done
    failures = prove(tensor_digest, device)
    detail = "; ".join(failures) or f"{len(golden.DIGESTS)} golden vectors"
    return f"digest on {device}", bool(failures), detail


def _stats_check() -> tuple[str, bool, str]:
    failures = [
        f"{vector.dtype}{list(vector.shape)}: expected {expected}, found {found}"
        for vector, expected in golden.STATS
        if (found := leaf_stats(golden.tensor(vector))) != expected
    ]
    return "stats on cpu", bool(failures), "; ".join(failures) or f"{len(golden.STATS)} golden vectors"


def _watched_check() -> tuple[str, bool, str]:
    what = "same loss bits with and without the recorder"
    with tempfile.TemporaryDirectory() as folder:
        plain = _train({})
        watched = _train(child_environment(Settings(directory=folder, stats=True), os.environ))
        recorded = any(Path(folder).glob("*.trail"))
    if not plain or plain != watched:
        return what, True, f"without: {' '.join(plain) or 'no output'}; with: {' '.join(watched) or 'no output'}"
    if not recorded:
        return what, True, "the recorder left no trail, so nothing was shown"
    return what, False, f"{len(plain)} losses on torch {torch.__version__}"


def _train(extra: dict[str, str]) -> list[str]:
    """The losses that the small training run printed, or what it said instead."""
    done = subprocess.run(
        [sys.executable, "-c", TRAINING], env={**os.environ, **extra}, capture_output=True, text=True, check=False
    )
    return done.stdout.split() if done.returncode == 0 else [done.stderr.strip()[-300:]]
