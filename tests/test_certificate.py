"""A certificate holds only as long as everything it states."""

from __future__ import annotations

import json
import shutil

import pytest

from detaudit import certificate
from detaudit.compare.evidence import open_run
from detaudit.compare.runs import judge
from detaudit.core.errors import InconclusiveError, UnreadableError
from detaudit.core.model import Outcome
from detaudit.core.names import Selection
from tests.made_runs import make_run


@pytest.fixture
def certified(tmp_path):
    """The path of a certificate over two equal runs of two ranks."""
    runs = [open_run(make_run(tmp_path / label, ranks=("rank0", "rank1")), label) for label in "AB"]
    verdict = judge(*runs, Selection())
    assert verdict.outcome is Outcome.CLEAN
    return certificate.write(verdict, runs, tmp_path)


def edit(path, **changes):
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def test_it_holds(certified):
    value = certificate.verify(certified)
    assert sorted(value["trails"]) == [f"{run}/rank{rank}.trail" for run in "AB" for rank in "01"]
    assert value["steps_compared"] == 5 and value["manifest"]["decisive"]["threads"] == 2


def test_it_holds_in_another_place(certified, tmp_path):
    moved = shutil.copytree(tmp_path, tmp_path.with_name("moved"))
    certificate.verify(moved / certificate.NAME)


def test_a_changed_trail(certified, tmp_path):
    make_run(tmp_path / "new", ranks=("rank1",), changes={(2, "loss"): 1})
    shutil.copy(tmp_path / "new" / "rank1.trail", tmp_path / "B" / "rank1.trail")
    with pytest.raises(InconclusiveError, match=r"B/rank1.trail has changed: expected sha256 \w+, found \w+"):
        certificate.verify(certified)


def test_a_missing_trail(certified, tmp_path):
    (tmp_path / "A" / "rank0.trail").unlink()
    with pytest.raises(InconclusiveError, match=r"A/rank0.trail is missing"):
        certificate.verify(certified)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"steps_compared": 10_000}, "states steps_compared 10000, its trails hold 5"),
        ({"leaves_compared": 99}, "states leaves_compared 99, its trails hold 10"),
        ({"manifest": {}}, "another manifest"),
        ({"selection": "no.*"}, "refuted by its own trails"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_an_edited_statement(certified, changes, words):
    edit(certified, **changes)
    with pytest.raises(InconclusiveError, match=words):
        certificate.verify(certified)


def test_a_trail_it_does_not_name(certified):
    value = json.loads(certified.read_text())
    edit(certified, trails={name: digest for name, digest in value["trails"].items() if "rank0" in name})
    with pytest.raises(InconclusiveError, match="trails it does not name"):
        certificate.verify(certified)


def test_one_run_certifies_nothing(certified):
    value = json.loads(certified.read_text())
    edit(certified, trails={name: digest for name, digest in value["trails"].items() if name[0] == "A"})
    with pytest.raises(InconclusiveError, match="one run"):
        certificate.verify(certified)


def test_a_pair_that_differs_is_refuted_whatever_the_hashes(certified, tmp_path):
    (tmp_path / "B" / "rank1.trail").unlink()
    make_run(tmp_path / "B", ranks=("rank1",), changes={(2, "loss"): 1})
    value = json.loads(certified.read_text())
    found = certificate.sha256_file(tmp_path / "B" / "rank1.trail")
    edit(certified, trails={**value["trails"], "B/rank1.trail": found})
    with pytest.raises(InconclusiveError, match="refuted by its own trails: the runs first differ at step 2"):
        certificate.verify(certified)


def test_a_failed_run_is_refuted(certified, tmp_path):
    (tmp_path / "B" / "run.json").write_text('{"exit_status": 1}')
    with pytest.raises(InconclusiveError, match="failed with exit status 1"):
        certificate.verify(certified)


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"schema": "detaudit.certificate/9"}'])
def test_what_is_no_certificate(tmp_path, text):
    path = tmp_path / certificate.NAME
    path.write_text(text)
    with pytest.raises(UnreadableError, match="is not a certificate"):
        certificate.verify(path)


def test_a_certificate_without_trails(certified):
    edit(certified, trails={})
    with pytest.raises(UnreadableError, match="certifies nothing"):
        certificate.verify(certified)
