"""Hypothesis sets: the shipped one, a user's own, and every way in which a file can be wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

import detaudit
from detaudit.core.buffers import Difference, Nearness, Region
from detaudit.core.errors import UnreadableError, UsageError
from detaudit.explain.hypotheses import KEYS, VALUES, read_set
from tests.made_dumps import LEAVES

SHIPPED = Path(detaudit.__file__).parent / "workloads" / "per_rl.toml"
SOUND = """
title = "mine"
[buffers.a]
leaf = "user.a"
[buffers.b]
leaf = "user.b"
fed_by = ["a"]
fed_by_previous = ["b"]
[hypotheses.H]
title = "b goes wrong"
buffer = "b"
explanation = "It does."
"""


def read(tmp_path, text):
    path = tmp_path / "my set.toml"
    path.write_text(text, encoding="utf-8")
    return read_set(path)


def test_a_set_of_a_user(tmp_path):
    found = read(tmp_path, SOUND)
    assert found.title == "mine" and [buffer.name for buffer in found.buffers] == ["a", "b"]
    assert found.buffers[1].fed_by == ("a",) and found.buffers[1].fed_by_previous == ("b",)
    assert found.by_leaf()["user.a"].name == "a"
    assert [(h.id, h.buffer) for h in found.hypotheses] == [("H", "b")]


def test_feeders_come_first_whatever_the_order_of_the_file(tmp_path):
    text = '[buffers.late]\nleaf = "l"\nfed_by = ["early"]\n[buffers.early]\nleaf = "e"\n'
    found = read(tmp_path, text)
    assert [buffer.name for buffer in found.buffers] == ["early", "late"]
    assert found.title == "my set" and found.hypotheses == ()


def test_a_loop_over_steps_is_no_cycle(tmp_path):
    text = '[buffers.x]\nleaf = "x"\nfed_by = ["y"]\n[buffers.y]\nleaf = "y"\nfed_by_previous = ["x", "y"]\n'
    assert [buffer.name for buffer in read(tmp_path, text).buffers] == ["y", "x"]


class TestShipped:
    def test_the_seed_s_three(self):
        found = read_set(SHIPPED)
        assert {h.id: h.title for h in found.hypotheses} == {
            "A": "PRNG seeding drift", "B": "tree-walk comparison flip", "C": "tree-rebuild nondeterminism",
        }  # fmt: skip
        assert {buffer.name: buffer.leaf for buffer in found.buffers} == LEAVES

    def test_every_leaf_is_declared_by_the_workload(self):
        source = (SHIPPED.parent / "per_trainer.py").read_text(encoding="utf-8")
        required = [buffer.leaf for buffer in read_set(SHIPPED).buffers if not buffer.optional]
        assert len(required) == 4 and all(f'"{leaf}"' in source for leaf in required)

    def test_far_apart_is_not_explained_by_an_order_of_additions(self):
        """The seed's note says so, and is wrong: the shape of the tree alone fixes the order."""
        rebuild = next(h for h in read_set(SHIPPED).hypotheses if h.id == "C")
        assert "stale" in rebuild.by_value["if_far"] and "order of addition" not in rebuild.explanation
        assert "whatever the order of additions" in rebuild.by_value["if_far"]
        assert "stale" not in rebuild.by_value["if_rounding"]


def difference(**what):
    base = Difference(2, 1, 0, 0, "1", "2", Region.ONE, Nearness.UNCLEAR, False, 0, 1)
    return Difference(**{**base.__dict__, **what})


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ({"nearness": Nearness.ROUNDING}, "It does. near"),
        ({"nearness": Nearness.FAR}, "It does. far"),
        ({"nearness": Nearness.FAR, "permutation": True}, "It does. moved"),
        ({}, "It does."),
    ],
    ids=str,
)
def test_the_explanation_follows_the_values(tmp_path, what, words):
    found = read(tmp_path, SOUND + 'if_rounding = "near"\nif_far = "far"\nif_permutation = "moved"\n')
    assert found.hypotheses[0].words(difference(**what)) == words
    assert found.hypotheses[0].words(None) == "It does."


WRONG = {
    "no buffer": ('title = "x"\n', "no buffer is declared; write one as [buffers.NAME]"),
    "empty": ("", "no buffer is declared"),
    "unknown feeder": (
        '[buffers.a]\nleaf = "a"\nfed_by = ["z"]\n',
        "buffers.a names the unknown buffer 'z'; the declared ones are a",
    ),
    "unknown earlier feeder": ('[buffers.a]\nleaf = "a"\nfed_by_previous = ["z"]\n', "unknown buffer 'z'"),
    "unknown buffer of a hypothesis": (
        SOUND.replace('buffer = "b"', 'buffer = "c"'),
        "hypotheses.H names the unknown buffer 'c'",
    ),
    "feeds itself": ('[buffers.a]\nleaf = "a"\nfed_by = ["a"]\n', "in a cycle within one step: a -> a"),
    "cycle": (
        "".join(f'[buffers.{name}]\nleaf = "{name}"\nfed_by = ["{fed}"]\n' for name, fed in ("ab", "bc", "ca")),
        "what comes from the step before belongs into fed_by_previous",
    ),
    "two buffers, one leaf": (
        '[buffers.a]\nleaf = "x"\n[buffers.b]\nleaf = "x"\n',
        "buffers.a and buffers.b both are leaf 'x'",
    ),
    "no leaf": ("[buffers.a]\noptional = true\n", "buffers.a has no leaf"),
    "leaf no text": ("[buffers.a]\nleaf = 3\n", "leaf is 3; it takes a text"),
    "blank leaf": ('[buffers.a]\nleaf = " "\n', "it takes a text"),
    "feeders no list": ('[buffers.a]\nleaf = "a"\nfed_by = "b"\n', "fed_by is 'b'; it takes a list of buffer names"),
    "unknown sums": (
        '[buffers.a]\nleaf = "a"\ncancels = false\nsums = "list"\n',
        "sums is 'list'; it takes heap, and with cancels = false only",
    ),
    "sums that cancel": ('[buffers.a]\nleaf = "a"\nsums = "heap"\n', "with cancels = false only"),
    "optional no switch": ('[buffers.a]\nleaf = "a"\noptional = "no"\n', "optional is 'no'; it takes true or false"),
    "misspelt key": (
        '[buffers.a]\nleaf = "a"\nfeeds_by = []\n',
        "buffers.a has the unknown key 'feeds_by'; the legal ones are",
    ),
    "misspelt table": ('[buffer.a]\nleaf = "a"\n', "the file has the unknown key 'buffer'"),
    "no table": ('buffers = "a"\n', "buffers holds something that is no table"),
    "no explanation": (SOUND.replace('explanation = "It does."', ""), "hypotheses.H has no explanation"),
    "title no text": (SOUND.replace('title = "mine"', "title = 1"), "title is 1; it takes a text"),
}


@pytest.mark.parametrize("how", WRONG)
def test_a_wrong_file_is_told_what_is_wrong(tmp_path, how):
    text, words = WRONG[how]
    with pytest.raises(UsageError) as caught:
        read(tmp_path, text)
    assert words in str(caught.value) and str(caught.value).startswith(f"{tmp_path / 'my set.toml'}: ")
    assert caught.value.exit_code == 2


@pytest.mark.parametrize("data", [b"not = toml = at all", b"\xff\xfe", b"[buffers.a"])
def test_no_toml(tmp_path, data):
    (tmp_path / "x.toml").write_bytes(data)
    with pytest.raises(UnreadableError, match="is not TOML"):
        read_set(tmp_path / "x.toml")


def test_no_file(tmp_path):
    with pytest.raises(UnreadableError, match=r"gone.toml cannot be read: No such file"):
        read_set(tmp_path / "gone.toml")


def test_every_value_key_is_legal():
    assert set(VALUES) <= KEYS["hypotheses"]
