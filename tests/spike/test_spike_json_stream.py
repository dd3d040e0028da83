from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from detaudit.core.errors import UnreadableError
from detaudit.spike import json_stream
from detaudit.spike.json_stream import JsonMembers

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**12), 10**12) | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=12,
)


def read(path: Path, nested: tuple[str, ...] = ("data",)) -> tuple[dict[str, Any], JsonMembers]:
    members = JsonMembers(path, nested)
    result: dict[str, Any] = {}
    for where, key, value in members:
        (result.setdefault(where, {}) if where else result)[key] = value
    return result, members


@settings(max_examples=150, deadline=None)
@given(st.dictionaries(st.text(max_size=6), VALUES, max_size=5), st.integers(1, 40), st.sampled_from([None, 1]))
def test_reads_what_json_reads_whatever_the_chunks(
    tmp_path_factory: pytest.TempPathFactory, document: dict[str, Any], chunk: int, indent: int | None
) -> None:
    path = tmp_path_factory.mktemp("json") / "x.json"
    path.write_text(json.dumps(document, indent=indent), encoding="utf-8")
    old = json_stream.CHUNK
    json_stream.CHUNK = chunk
    try:
        found, members = read(path, ())
    finally:
        json_stream.CHUNK = old
    assert found == json.loads(path.read_text(encoding="utf-8")) and not members.truncated


def test_members_of_data_come_one_by_one_and_in_order(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text('{"task": "statistics", "data": {"b": [1], "a": {}}, "level": "mix"}')
    assert list(JsonMembers(path, ("data",))) == [
        ("", "task", "statistics"),
        ("data", "b", [1]),
        ("data", "a", {}),
        ("", "level", "mix"),
    ]


def test_bare_nan_and_infinity_are_read(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text('{"a": NaN, "b": Infinity, "c": -Infinity}')
    found, _ = read(path)
    assert math.isnan(found["a"]) and found["b"] == math.inf and found["c"] == -math.inf


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 10**6))
def test_a_cut_file_gives_its_whole_members_and_says_so(tmp_path_factory: pytest.TempPathFactory, place: int) -> None:
    document = {"task": "statistics", "data": {f"k{i}": {"x": [i, None, "text"], "y": 1.5 * i} for i in range(20)}}
    text = json.dumps(document)
    cut = place % len(text)
    if cut == 0:
        return
    path = tmp_path_factory.mktemp("cut") / "x.json"
    path.write_text(text[:cut])
    found, members = read(path)
    assert members.truncated and str(path) in members.truncated
    held = found.get("data", {})
    assert held == {key: document["data"][key] for key in list(document["data"])[: len(held)]}  # type: ignore[index]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "is empty"),
        ("  \n", "is empty"),
        ("[1, 2]", "not a JSON object"),
        ('{"a": 1 "b": 2}' + " " * 100, "',' expected"),
        ('{"a": tru' + "x" * 200 + "}", "at character 6"),
        ('{"a" 1}' + " " * 90, "':' expected"),
    ],
)
def test_what_is_broken_in_the_middle_is_an_error_with_its_place(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "x.json"
    path.write_text(text)
    with pytest.raises(UnreadableError, match=says):
        read(path)


def test_a_number_at_the_edge_of_a_chunk_is_not_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.json"
    path.write_text('{"a": 123456, "b": 10.25, "c": -1.5e-07}')
    for chunk in range(1, 42):
        monkeypatch.setattr(json_stream, "CHUNK", chunk)
        assert read(path)[0] == {"a": 123456, "b": 10.25, "c": -1.5e-07}


@pytest.mark.slow
def test_half_a_gigabyte_in_bounded_memory(tmp_path: Path) -> None:
    path = tmp_path / "dump.json"
    tensor = {
        "type": "torch.Tensor",
        "dtype": "torch.bfloat16",
        "shape": [4, 4096, 8192],
        "Max": 1.5,
        "Min": -1.5,
        "Mean": 0.1,
        "Norm": 9.0,
        "pad": "x" * 9000,
    }
    entry = json.dumps({"input_args": [tensor] * 3, "output": [tensor] * 2})
    with path.open("w") as stream:
        stream.write('{"task": "statistics", "data": {')
        for i in range(11_000):
            stream.write(("," if i else "") + f'"Module.a.layers.{i}.L.forward.0": {entry}')
        stream.write("}}")
    assert path.stat().st_size > 480 << 20
    code = (
        "import re; from pathlib import Path; from detaudit.spike.read_dump import read_dump, find_dumps\n"
        f"d = read_dump(find_dumps({str(path)!r})[0])\n"
        # Not getrusage: its ru_maxrss survives exec, so a child of a large pytest reports pytest's own peak.
        "peak = re.search(r'VmHWM:\\s+(\\d+) kB', Path('/proc/self/status').read_text()).group(1)\n"
        "print(len(d.entries), peak)"
    )
    count, peak = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    assert int(count) == 11_000 and int(peak) < 400 << 10, "kilobytes"
