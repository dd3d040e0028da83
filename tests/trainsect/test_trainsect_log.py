"""The hash chain: whole, torn, edited, cut; and losses that JSON cannot say."""

from __future__ import annotations

import errno
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from detaudit.core.errors import TrailCorruptError, UnreadableError, UsageError
from detaudit.trainsect.chainlog import ChainWriter, read_log, read_loss, spell_loss


@pytest.fixture
def log(tmp_path):
    path = tmp_path / "log.jsonl"
    writer = ChainWriter(path)
    for step in range(5):
        writer.append("step", step=step, loss=spell_loss(step / 3))
    writer.close()
    return path


def test_it_reads_what_was_written(log):
    found = read_log(log)
    assert [line["step"] for line in found.lines] == [0, 1, 2, 3, 4] and not found.torn
    assert [read_loss(line["loss"]) for line in found.lines] == [step / 3 for step in range(5)]


def test_a_torn_tail_is_dropped_and_told(log):
    whole = log.read_bytes()
    log.write_bytes(whole[:-7])
    found = read_log(log)
    assert len(found.lines) == 4 and found.torn > 0


@pytest.mark.parametrize("place", [0, 2, 4])
def test_an_edited_line_is_named(log, place):
    lines = log.read_bytes().split(b"\n")
    lines[place] = lines[place].replace(b'"step":', b'"step":1', 1)
    log.write_bytes(b"\n".join(lines))
    with pytest.raises(TrailCorruptError, match=f"line {place + 1}"):
        read_log(log)


def test_a_removed_or_exchanged_line_is_named(log):
    lines = log.read_bytes().split(b"\n")
    log.write_bytes(b"\n".join(lines[:1] + lines[2:]))
    with pytest.raises(TrailCorruptError, match="line 2"):
        read_log(log)
    log.write_bytes(b"\n".join([lines[1], lines[0], *lines[2:]]))
    with pytest.raises(TrailCorruptError, match="line 1"):
        read_log(log)


@pytest.mark.parametrize("text", [b"no json\n", b"[1]\n", b'{"kind":"step"}\n', b"\n\n"])
def test_what_is_no_line_is_an_error(tmp_path, text):
    path = tmp_path / "x"
    path.write_bytes(text)
    with pytest.raises(TrailCorruptError):
        read_log(path)


def test_missing_and_existing_files(tmp_path, log):
    with pytest.raises(UnreadableError):
        read_log(tmp_path / "absent")
    with pytest.raises(UsageError, match="never overwritten"):
        ChainWriter(log)


def test_a_full_disk_leaves_whole_lines(tmp_path, monkeypatch):
    writer = ChainWriter(tmp_path / "log")
    writer.append("step", step=0)
    real = os.write

    def half(file, data):
        real(file, data[: len(data) // 2])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", half)
    with pytest.raises(OSError):
        writer.append("step", step=1)
    monkeypatch.undo()
    writer.append("step", step=2)
    writer.close()
    assert [line["step"] for line in read_log(tmp_path / "log").lines] == [0, 2]


@given(st.floats(allow_nan=True, allow_infinity=True))
def test_losses_come_back_exactly(value):
    found = read_loss(spell_loss(value))
    assert repr(found) == repr(value)
