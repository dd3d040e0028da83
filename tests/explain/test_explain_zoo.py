"""One plain `check` of a diverging program gives its kind, operator and line. Each takes several imports of torch."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from detaudit.audit import Request, check
from detaudit.core.model import Explanation, ExplanationKind
from tests.zoo.expectations import CASES, ZOO

pytestmark = pytest.mark.timeout(900)
"""Up to a dozen runs of a program, each with an import of torch."""


@dataclass(frozen=True)
class Truth:
    """What the drill-down must say of a program of the zoo. `code` begins the line that is named, `kinds` and
    `operators` are alternatives; `text` stands somewhere in the evidence."""

    name: str
    kinds: str
    code: str = ""
    operators: str = ""
    text: str = ""


TRUTHS = [
    Truth("race_gather_backward", "operator", "rows = torch.index_select", "index_put", "IndexBackward0"),
    Truth("race_index_put", "operator", "return grid.index_put_(", "index_put_"),
    Truth("race_duplicate_write", "operator", "self.memory[slot] = value", "index_put_"),
    Truth("race_permuted_tree", "operator", "return tree.index_put_(", "index_put_"),
    Truth("unseeded_default_rng", "outside", "for x, y in loader"),
    Truth("clock_feature", "outside", "x = torch.cat(", "full", "plain value"),
    Truth("clock_buffer", "outside"),
    Truth("late_reseed", "rng", "torch.manual_seed(", "torch.manual_seed"),
    Truth("time_seed", "rng", "torch.manual_seed(", "torch.manual_seed"),
    Truth("address_order", "control-flow", "features = torch.stack(", "stack", "in another order"),
    Truth("stochastic_depth", "control-flow", "x = x + block(x)", text="only run"),
    Truth("uninitialised_param", "memory", "self.up = nn.Parameter(torch.empty", "empty.memory_format"),
    Truth("tail_noise", "outside", "p.add_(torch.from_numpy("),
]


def explain(command, tmp_path: Path, monkeypatch, **more) -> Explanation:
    work = tmp_path / "work dir"
    work.mkdir(exist_ok=True)
    monkeypatch.chdir(work)
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    verdict = check(Request(tuple(command), tmp_path / "the out", **{"toggles": False, **more}))
    assert not list((tmp_path / "the out").rglob("*error*.txt")), "recorder or tracer failed"
    assert verdict.explanation is not None, verdict.reason
    return verdict.explanation


@pytest.mark.slow
def test_one_plain_check_names_operator_line_experiment_and_fix(tmp_path, monkeypatch):
    case = next(case for case in CASES if case.name == "race_gather_backward")
    found = explain(case.command(), tmp_path, monkeypatch, toggles=True)
    assert (found.kind, found.operator) == ("operator", "index_put")
    assert found.cause is not None and found.cause.id == "index-put-race" and "index_select" in found.cause.fix
    assert [toggle.diverged for toggle in found.toggles if toggle.name == "deterministic"] == [0]


@pytest.mark.slow
@pytest.mark.parametrize("truth", TRUTHS, ids=lambda truth: truth.name)
def test_the_zoo_is_explained(truth, tmp_path, monkeypatch):
    case = next(case for case in CASES if case.name == truth.name)
    found = explain(case.command(), tmp_path, monkeypatch)
    assert str(found.kind) in truth.kinds.split("|"), found
    assert found.code.startswith(truth.code), found
    assert not truth.operators or found.operator in truth.operators.split("|"), found
    assert truth.text in "\n".join(found.evidence), found
    if truth.code:
        assert Path(found.file) == ZOO / f"{truth.name}.py"
        assert (ZOO / f"{truth.name}.py").read_text().splitlines()[found.line - 1].strip() == found.code
    if found.kind is ExplanationKind.OPERATOR:
        assert "re-executions on the same inputs differ" in found.rate


GATHER = """
import sys, torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode
torch.manual_seed(0)
features = nn.Parameter(torch.randn(64, 16))
index = torch.randint(0, 64, (60_000,))
target = torch.randn(60_000, 16)  # equal terms would add up to the same bits in any order
layer = nn.Linear(16, 16)
opt = torch.optim.SGD([features, *layer.parameters()], lr=0.1)
def pick(h):
    return layer(h[index])  # the line
def update(loss):
    loss.backward()
    opt.step()
def forward():
    opt.zero_grad()
    return pick(features).sub(target).square().mean()
"""
PROGRAMS = {
    "grad_scaler": """
scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
for step in range(12):
    scaler.scale(forward()).backward()
    scaler.step(opt)
    scaler.update()
""",
    "checkpointing": """
for step in range(12):
    opt.zero_grad()
    update(checkpoint(pick, features, use_reentrant=False).sub(target).square().mean())
""",
    "flop_counter": """
for step in range(12):
    with FlopCounterMode(display=False):
        update(forward())
""",
    "compiled": """
pick = torch.compile(pick, backend="eager")
for step in range(12):
    update(forward())
""",
    "manual": """
for step in range(12):
    features.grad = None
    pick(features).sub(target).square().mean().backward()
    with torch.no_grad():
        features -= 0.1 * features.grad
""".replace("pick(features)", "features[index]"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_race_in_every_setting(name, tmp_path, monkeypatch):
    source = GATHER + PROGRAMS[name]
    if name == "manual":  # no optimizer: the clock is the backward call
        source = source.replace("opt = torch.optim", "unused = lambda: torch.optim")
    script = tmp_path / "a script.py"
    script.write_text(source)
    found = explain([sys.executable, str(script)], tmp_path, monkeypatch)
    assert (found.kind, found.operator, found.file) == ("operator", "index_put", str(script)), found
    assert "[index]" in found.code
    assert any("eagerly" in line for line in found.evidence) == (name == "compiled")


@pytest.mark.slow
def test_a_script_that_fails_while_it_is_traced(tmp_path, monkeypatch):
    script = tmp_path / "script.py"
    count = "import pathlib\npast = pathlib.Path('runs')\n"
    count += "past.write_text((past.read_text() if past.exists() else '') + 'x')\n"
    fail = "if len(past.read_text()) > 2: raise SystemExit(7)\n"
    noise = "features.data += torch.from_numpy(__import__('numpy').random.default_rng().normal(size=(64, 16)))\n"
    script.write_text(count + fail + GATHER + noise + PROGRAMS["flop_counter"])
    found = explain([sys.executable, str(script)], tmp_path, monkeypatch, pairs=1)
    assert found.kind is ExplanationKind.NOT_REPRODUCED and "exit status 7" in found.evidence[0]
