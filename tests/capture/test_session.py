"""The public `record(...)`."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn
from torch.optim.optimizer import _global_optimizer_post_hooks

import detaudit
from detaudit.core.errors import UsageError
from detaudit.core.model import StepKind
from detaudit.trail.reader import TrailReader
from tests.capture.programs import record as run_recorded


def train(out: Path | None, steps: int = 3) -> list[str]:
    torch.manual_seed(0)
    net = nn.Linear(3, 1)
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    losses = []
    with detaudit.record(net, opt, out=out) as audit:
        for number in range(steps):
            loss = net(torch.randn(2, 3)).square().mean()
            opt.zero_grad()
            loss.backward()
            opt.step()
            audit.leaf("per.priority_tree", torch.full((4,), float(number)))
            audit.step()
            losses.append(loss.item().hex())
    return losses


def test_the_user_names_leaves_and_closes_steps(tmp_path: Path) -> None:
    losses = train(tmp_path / "a")
    with TrailReader(tmp_path / "a" / "main.trail") as trail:
        assert trail.steps == [0, 1, 2, 3]
        assert [layout.kind for layout in trail.layouts] == [StepKind.MARKED, StepKind.MARKED, StepKind.TAIL]
        names = trail.layout(1).names
        assert names.index("param.net.weight") < names.index("per.priority_tree")
        assert trail.outcome == "complete"
    assert losses == train(None), "a session that records changes no bit"


def test_the_hooks_are_gone_afterwards(tmp_path: Path) -> None:
    before = (torch.autograd.backward, torch.optim.Optimizer.__init__, torch.utils.data.DataLoader.__iter__)
    train(tmp_path / "a")
    assert before == (torch.autograd.backward, torch.optim.Optimizer.__init__, torch.utils.data.DataLoader.__iter__)
    assert not torch.nn.modules.module._global_forward_hooks
    assert not _global_optimizer_post_hooks


def test_a_session_without_out_outside_an_audit_is_inert() -> None:
    with detaudit.record() as audit:
        assert not audit.active
        audit.leaf("x", torch.zeros(1))
        audit.step()
    with pytest.raises(UsageError, match="records nothing"):
        _ = audit.recorder


def test_an_exception_stands_in_the_trail(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="boom"), detaudit.record(out=tmp_path / "a") as audit:
        audit.leaf("x", torch.zeros(1))
        audit.step()
        raise RuntimeError("boom")
    with TrailReader(tmp_path / "a" / "main.trail") as trail:
        assert trail.outcome == "exception RuntimeError"


def test_misuse_is_refused_with_the_cure(tmp_path: Path) -> None:
    train(tmp_path / "a")
    with pytest.raises(UsageError, match="never overwritten"):
        detaudit.record(out=tmp_path / "a")
    with pytest.raises(UsageError, match="modules and optimizers"):
        detaudit.record(3, out=tmp_path / "b")  # type: ignore[arg-type]
    assert not (tmp_path / "b").exists()


def test_under_a_recorder_the_session_joins_it(tmp_path: Path) -> None:
    source = (
        "import torch, detaudit\n"
        "with detaudit.record(out='elsewhere') as audit:\n"
        "    for step in range(4):\n"
        "        audit.leaf('checksums.tree', torch.ones(3) * step); audit.step()\n"
    )
    joined = run_recorded(source, tmp_path / "run")
    assert joined.status == 0, joined.stderr
    assert joined.trail().steps == [0, 1, 2, 3, 4]
    assert any("joined the audit" in note.get("text", "") for note in joined.trail().notes)
    assert "checksums.tree" in joined.trail().layout(0).names


def test_a_leaf_that_cannot_be_read_is_named_never_skipped(tmp_path: Path) -> None:
    with detaudit.record(out=tmp_path / "a") as audit:
        audit.leaf("opaque", object())
        audit.leaf("meta", torch.empty(2, device="meta"))
        audit.step()
    with TrailReader(tmp_path / "a" / "main.trail") as trail:
        leaves = {leaf.name: leaf.unsupported for leaf in trail.layout(0).leaves}
        assert "no exact byte encoding" in leaves["opaque"]
        assert "meta" in leaves["meta"]
