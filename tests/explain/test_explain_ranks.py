"""The drill-down over several ranks: the rank that diverged first is traced and named. torchrun on gloo."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from detaudit.audit import Request, check
from detaudit.core.model import Outcome

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

PROGRAM = """
import torch
import torch.distributed as dist
from torch import nn
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.set_num_threads(4)
torch.manual_seed(rank)
index = torch.randint(0, 64, (60_000,))
target = torch.randn(60_000, 16)  # equal terms would add up to the same bits in any order
torch.manual_seed(0)
features = nn.Parameter(torch.randn(64, 16))
opt = torch.optim.SGD([features], lr=0.1)
for step in range(4):
    opt.zero_grad()
    rows = features[index] if rank == RACING else torch.index_select(features, 0, index)
    (rows - target).square().mean().backward()
    dist.all_reduce(features.grad)
    opt.step()
dist.destroy_process_group()
"""


def audit(tmp_path, monkeypatch, racing):
    monkeypatch.chdir(tmp_path)
    script = tmp_path / "ranks.py"
    script.write_text(PROGRAM.replace("RACING", str(racing)))
    launcher = str(Path(sys.executable).with_name("torchrun"))
    command = (launcher, "--standalone", "--nproc-per-node", "2", str(script))
    return script, check(Request(command, tmp_path / "out", toggles=False))


def test_the_rank_that_races_is_named_with_operator_and_line(tmp_path, monkeypatch):
    """What rank 1 sums differently reaches rank 0 by the all_reduce of the same step."""
    script, verdict = audit(tmp_path, monkeypatch, racing=1)
    found = verdict.explanation
    assert verdict.outcome is Outcome.DIVERGED and found is not None
    assert (found.kind, found.operator, found.file) == ("operator", "index_put", str(script)), found
    assert found.code.startswith("rows = features[index] if rank == 1")
    assert any(
        line.startswith("the traced pair first diverged at step") and "in rank1" in line for line in found.evidence
    )
    assert "re-executions on the same inputs differ" in found.rate


def test_ranks_without_a_race_are_clean(tmp_path, monkeypatch):
    _, verdict = audit(tmp_path, monkeypatch, racing=-1)
    assert verdict.outcome is Outcome.CLEAN and verdict.explanation is None
