"""The format note cannot drift: the reader printed in it is run against real trails."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from trail_cases import small_trail

from detaudit.trail import frames
from detaudit.trail.reader import TrailReader

NOTE = Path(__file__).parents[2] / "docs" / "notes" / "format.md"


def printed_reader():
    code = re.search(r"```python\n(.*?)```", NOTE.read_text(encoding="utf-8"), re.S).group(1)
    assert len(code.splitlines()) <= 24
    names: dict[str, object] = {}
    exec(code, names)
    return names["read_trail"]


def test_the_reader_in_the_note_reads_what_ours_reads(tmp_path):
    path = small_trail(tmp_path / "t")
    read_trail = printed_reader()
    with TrailReader(path) as trail:
        expected = [(r.step, r.chain, dict(zip(r.layout.names, r.digests, strict=True))) for r in trail]
    assert list(read_trail(path)) == expected
    data = path.read_bytes()
    path.write_bytes(data[:-200])
    with TrailReader(path) as trail:
        assert [step for step, _, _ in read_trail(path)] == trail.steps != [0, 1, 2, 3]
    path.write_bytes(data[:60] + bytes([data[60] ^ 1]) + data[61:])
    with pytest.raises(AssertionError):
        list(read_trail(path))


def test_the_note_speaks_of_this_version():
    text = NOTE.read_text(encoding="utf-8")
    assert text.startswith(f"# The trail format, version {frames.VERSION}\n")
    for kind in frames.Kind:
        assert f"| {kind.value} {kind.name.lower()} |" in text
