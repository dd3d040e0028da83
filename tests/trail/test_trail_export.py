"""Export: what JSON lines and CSV hold is what the trail holds, whatever the names."""

from __future__ import annotations

import csv
import io
import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from trail_cases import small_trail

from detaudit.core.model import Layout, Leaf, RunManifest, Stats
from detaudit.trail.export import COLUMNS, STATS_COLUMNS, rows, write_csv, write_jsonl
from detaudit.trail.reader import TrailReader
from detaudit.trail.writer import TrailWriter

AWKWARD = [
    "a,b",
    'q"uote',
    "line\nfeed",
    "carriage\rreturn",
    "both\r\n",
    "naïve",
    "日本",
    "tab\t",
    " blank ",
    "=1+1",
    "",
]
AWKWARD += ["u2028\u2028", "emoji😀", "back\\slash", "'single'", "a;b", "opt[0].exp_avg", "nul\0"]


def trail_of(path, names, stats=()):
    layout = Layout(tuple(Leaf(name, "float32", (2, 3)) for name in names), optimizer="opt")
    writer = TrailWriter(path, RunManifest())
    writer.step(7, layout, [2**64 - 1 - index for index in range(len(names))], stats)
    writer.close()
    return TrailReader(path)


def as_jsonl(trail, **options):
    out = io.StringIO(newline="")
    count = write_jsonl(trail, out, **options)
    return count, out.getvalue()


def as_csv(trail, **options):
    out = io.StringIO(newline="")
    count = write_csv(trail, out, **options)
    return count, out.getvalue()


def test_rows_in_execution_order(tmp_path):
    with TrailReader(small_trail(tmp_path / "t")) as trail:
        found = list(rows(trail, "rank1"))
    assert [(row["step"], row["order"], row["leaf"]) for row in found[:3]] == [
        (0, 0, "param.w"),
        (0, 1, "loss"),
        (1, 0, "param.w"),
    ]
    assert found[0] == {
        "rank": "rank1",
        "step": 0,
        "kind": "update",
        "optimizer": "opt",
        "order": 0,
        "leaf": "param.w",
        "dtype": "float32",
        "shape": "2x3",
        "digest": "0000000000000001",
        "unsupported": "",
    }
    unsupported = found[-1]
    assert (unsupported["digest"], unsupported["unsupported"]) == ("", "quantised tensor")
    assert tuple(found[2]) == COLUMNS + STATS_COLUMNS


@pytest.mark.parametrize("names", [AWKWARD, [name for name in AWKWARD if "\r" not in name]], ids=["all", "no returns"])
def test_awkward_names_round_trip(tmp_path, names):
    with trail_of(tmp_path / "t", names) as trail:
        count, text = as_jsonl(trail)
        back = [json.loads(line) for line in text.split("\n")[:-1]]
        assert count == len(names) == len(back)
        assert [row["leaf"] for row in back] == names
        assert [int(row["digest"], 16) for row in back] == list(trail.digests(0))
        count, text = as_csv(trail)
        assert count == len(names)
        back = list(csv.DictReader(io.StringIO(text, newline="")))
        assert [row["leaf"] for row in back] == names
        assert [int(row["digest"], 16) for row in back] == list(trail.digests(0))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.text(st.characters(codec="utf-8"), max_size=8), min_size=1, max_size=5))
def test_any_names_round_trip(tmp_path_factory, names):
    with trail_of(tmp_path_factory.mktemp("names") / "t", names) as trail:
        back = list(csv.DictReader(io.StringIO(as_csv(trail)[1], newline="")))
        assert [row["leaf"] for row in back] == names
        assert [json.loads(line)["leaf"] for line in as_jsonl(trail)[1].split("\n")[:-1]] == names


def test_through_a_file_as_a_user_would_write_it(tmp_path):
    with trail_of(tmp_path / "t", AWKWARD) as trail:
        with open(tmp_path / "out.csv", "w", encoding="utf-8", newline="") as file:
            write_csv(trail, file)
        with open(tmp_path / "out.jsonl", "w", encoding="utf-8") as file:
            write_jsonl(trail, file)
    with open(tmp_path / "out.csv", encoding="utf-8", newline="") as file:
        assert [row["leaf"] for row in csv.DictReader(file)] == AWKWARD
    with open(tmp_path / "out.jsonl", encoding="utf-8") as file:
        assert [json.loads(line)["leaf"] for line in file] == AWKWARD


def test_stats_are_exact_and_the_json_is_strict(tmp_path):
    stats = [Stats(2**64 - 1, 0.1 + 0.2, -1e-320, 1e308, 1, 2**50), Stats(0, math.inf, 0.0, 0.0, 0, 0)]
    with trail_of(tmp_path / "t", ["a", "b"], stats) as trail:

        def refuse(text):
            raise AssertionError(f"{text} is not JSON")

        first, second = (json.loads(line, parse_constant=refuse) for line in as_jsonl(trail)[1].splitlines())
        assert Stats(int(first["bag"], 16), *(first[name] for name in STATS_COLUMNS[1:])) == stats[0]
        assert float(second["sumsq"]) == math.inf
        table = list(csv.DictReader(io.StringIO(as_csv(trail)[1], newline="")))
        assert [float(row["sumsq"]) for row in table] == [0.1 + 0.2, math.inf]
        assert [int(row["infs"]) for row in table] == [2**50, 0]


def test_csv_head_line_and_blanks_for_steps_without_stats(tmp_path):
    with TrailReader(small_trail(tmp_path / "t")) as trail:
        with_head, without = as_csv(trail)[1], as_csv(trail, head=False)[1]
        assert with_head == ",".join(COLUMNS + STATS_COLUMNS) + "\n" + without
        table = list(csv.DictReader(io.StringIO(with_head, newline="")))
    assert [row["bag"] != "" for row in table] == [False, False, True, True, False, False, False, False]


def test_equal_trails_export_to_equal_bytes(tmp_path):
    with TrailReader(small_trail(tmp_path / "a")) as a, TrailReader(small_trail(tmp_path / "b")) as b:
        assert as_csv(a) == as_csv(b) and as_jsonl(a) == as_jsonl(b)


def test_an_empty_trail_exports_nothing_but_its_head_line(tmp_path):
    TrailWriter(tmp_path / "t", RunManifest()).close()
    with TrailReader(tmp_path / "t") as trail:
        assert as_jsonl(trail) == (0, "")
        assert as_csv(trail) == (0, ",".join(COLUMNS) + "\n")
