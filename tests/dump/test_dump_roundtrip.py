"""What is written is what is read: every dtype, layout and kind of value, occurrences, limits, ends."""

from __future__ import annotations

import os
import pickletools
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from detaudit.core.errors import UsageError
from detaudit.digest.host import dtype_name, tensor_digest
from detaudit.digest.stats import raw_bytes
from detaudit.digest.values import encode_value
from detaudit.dump.manifest import ITEM_SIZES, NAME, Entry, Header
from detaudit.dump.reader import DumpReader, open_dump
from detaudit.dump.writer import DumpWriter

HEADER = Header("main", ("train.py", "--lr", "1"), (0, 1), ("*",), 10**6)


def written(directory, *leaves, header=HEADER, **end):
    """The dump of (step, name, value) triples, read back."""
    writer = DumpWriter(directory / header.process, header)
    for leaf in leaves:
        writer.add(*leaf)
    writer.close("complete", **end)
    return DumpReader(directory / header.process)


def only(dump):
    (entry,) = dump.entries.values()
    return entry


@pytest.mark.parametrize("name", sorted(set(ITEM_SIZES) - {"value"}))
def test_every_dtype(tmp_path, name):
    raw = torch.randint(0, 256, (6, 2 * ITEM_SIZES[name]), generator=torch.Generator().manual_seed(1))
    tensor = raw.to(torch.uint8).view(getattr(torch, name))
    dump = written(tmp_path, (0, "x", tensor))
    entry = only(dump)
    assert (entry.dtype, entry.shape, entry.nbytes) == (name, (6, 2), raw.numel())
    assert dump.data(entry) == raw.to(torch.uint8).numpy().tobytes()
    assert int(entry.digest, 16) == tensor_digest(tensor), "the digest is the trail's"


BASE = torch.arange(24.0).reshape(4, 6)
ODD = {
    "transposed": BASE.t(),
    "strided": BASE[::2, 1::2],
    "expanded": torch.ones(1).expand(3, 5),
    "scalar": torch.tensor(1.5),
    "empty": torch.zeros(0, 7),
    "conjugated": torch.tensor([1 + 2j]).conj(),
    "negated": torch.tensor([1 + 2j]).conj().imag,
    "wants a gradient": torch.ones(2, requires_grad=True) * 2,
    "parameter": torch.nn.Parameter(torch.ones(3)),
    "offset": BASE[2:],
}


@pytest.mark.parametrize("kind", ODD)
def test_odd_tensors_come_out_in_c_order(tmp_path, kind):
    dump = written(tmp_path, (0, "x", ODD[kind]))
    plain = ODD[kind].detach().resolve_conj().resolve_neg().contiguous()
    assert dump.data(only(dump)) == raw_bytes(plain) == plain.numpy().tobytes()
    assert only(dump).shape == tuple(plain.shape) and only(dump).dtype == dtype_name(plain.dtype)


def test_a_dump_is_of_the_moment(tmp_path):
    tensor = torch.zeros(3)
    writer = DumpWriter(tmp_path / "main", HEADER)
    writer.add(0, "x", tensor)
    tensor.fill_(1)
    writer.add(0, "x", tensor)
    writer.close("complete")
    dump = DumpReader(tmp_path / "main")
    assert [dump.data(dump.entries[0, leaf]) for leaf in ("x", "x#1")] == [bytes(12), b"\x00\x00\x80?" * 3]


@pytest.mark.parametrize("array", [np.arange(6, dtype="int16").reshape(2, 3).T, np.float64(1.5), np.zeros((0, 2))])
def test_arrays(tmp_path, array):
    dump = written(tmp_path, (0, "x", array))
    assert dump.data(only(dump)) == array.tobytes() and only(dump).dtype == array.dtype.name


@pytest.mark.parametrize("value", [3, "text", [1.5, None], {"a": (1, 2)}], ids=str)
def test_plain_values_are_their_canonical_encoding(tmp_path, value):
    dump = written(tmp_path, (0, "x", value))
    assert dump.data(only(dump)) == encode_value(value) and only(dump).dtype == "value"


class Unreadable:
    """A container of a user's own that fails when it is read."""

    dtype, shape = "none", ()

    @property
    def tobytes(self):
        raise RuntimeError("not now")


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (torch.eye(2).to_sparse(), "layout torch.sparse_coo has no raw form"),
        (torch.empty(2, device="meta"), "meta tensor"),
        (np.array(["x"], object), "dtype |O"),
        (np.arange(2, dtype=">i4"), "dtype >i4"),
        (object(), "no exact byte encoding"),
        (Unreadable(), "reading it raised RuntimeError: not now"),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, str) else "",
)
def test_what_has_no_bytes_says_so_and_stops_nothing(tmp_path, value, words):
    dump = written(tmp_path, (0, "bad", value), (0, "good", torch.ones(2)))
    bad, good = dump.entries.values()
    assert words in bad.skipped and not bad.sha256
    assert not good.skipped and len(dump.data(good)) == 8


names = st.text(min_size=1, max_size=30)


@given(st.lists(st.tuples(st.integers(0, 3), names, st.binary(max_size=40)), max_size=8))
def test_any_name_and_value_survives(tmp_path_factory, leaves):
    directory = tmp_path_factory.mktemp("any")
    dump = written(directory, *((step, name.encode("utf-8", "replace").decode(), data) for step, name, data in leaves))
    assert [entry.step for entry in dump.entries.values()] == [step for step, _, _ in leaves]
    assert [dump.data(entry) for entry in dump.entries.values()] == [encode_value(data) for _, _, data in leaves]
    counts = {}
    for entry in dump.entries.values():
        assert entry.occurrence == counts.get((entry.step, entry.name), 0)
        counts[entry.step, entry.name] = entry.occurrence + 1


@given(names, st.integers(0, 99))
def test_a_file_name_stays_inside_its_directory(name, number):
    file = Entry(number, 3, name, 0, "uint8", (1,), 1).file
    assert Path(file).name == file and file.startswith(f"{number:06d}-step3-") and len(os.fsencode(file)) < 255


@pytest.mark.parametrize(
    "name", ["../../escape", "/etc/passwd", "..", "a/b", "a\\b", "con\n", "\0", "x" * 500, "äöü", " "]
)
def test_hostile_names_are_only_names(tmp_path, name):
    inside = tmp_path / "in side"
    dump = written(inside, (0, name, torch.ones(2)))
    assert only(dump).name == name and len(dump.data(only(dump))) == 8
    assert sorted(path.parent for path in tmp_path.rglob("*") if path.is_file()) == [inside / "main"] * 2


class TestLimit:
    def test_what_is_over_the_limit_is_named_and_what_still_fits_is_kept(self, tmp_path):
        header = Header("main", (), (0,), (), 100)
        leaves = [
            (0, "a", torch.zeros(20)),
            (0, "b", torch.zeros(6)),
            (0, "c", torch.zeros(5)),
            (0, "d", torch.zeros(1)),
        ]
        dump = written(tmp_path, *leaves, header=header)
        skipped = {entry.name: entry.skipped for entry in dump.entries.values()}
        assert skipped == {"a": "", "b": "byte limit reached: 24 bytes more than the 20 left", "c": "",
                           "d": "byte limit reached: 4 bytes more than the 0 left"}  # fmt: skip
        assert (dump.end.limited, dump.end.bytes, dump.end.entries) == (2, 100, 4)
        assert sum(path.stat().st_size for path in dump.directory.glob("*.raw")) == 100

    def test_bytes_over_the_limit_are_never_copied(self, tmp_path):
        """A tensor that claims a terabyte of zeros: only its size may be looked at."""
        huge = torch.zeros(1).expand(2**38)
        assert "byte limit" in only(written(tmp_path, (0, "x", huge))).skipped


def test_what_was_asked_for_and_never_met_stands_in_the_end(tmp_path):
    end = written(tmp_path, unseen_steps=[7], unseen_leaves=["no.such.*"]).end
    assert (end.outcome, end.unseen_steps, end.unseen_leaves) == ("complete", (7,), ("no.such.*",))


def test_the_header_comes_back(tmp_path):
    assert written(tmp_path).header == HEADER


def test_a_dump_is_never_overwritten(tmp_path):
    written(tmp_path)
    with pytest.raises(UsageError, match="exists already; a dump is never overwritten"):
        DumpWriter(tmp_path / "main", HEADER)


def test_raw_files_are_read_only_and_no_pickle(tmp_path):
    dump = written(tmp_path, (0, "x", torch.arange(64.0)))
    (file,) = dump.directory.glob("*.raw")
    assert file.stat().st_mode & 0o222 == 0
    assert file.read_bytes() == np.arange(64, dtype="float32").tobytes(), "the bytes and nothing else"
    with pytest.raises(ValueError):
        list(pickletools.genops((dump.directory / NAME).read_bytes()))


def test_a_full_disk_leaves_no_half_file_and_no_line(tmp_path, monkeypatch):
    writer = DumpWriter(tmp_path / "main", HEADER)
    writer.add(0, "x", torch.ones(2))

    def full(fd, mode):
        os.close(fd)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("builtins.open", full)
    with pytest.raises(OSError):
        writer.add(0, "y", torch.ones(2))
    monkeypatch.undo()
    writer.abandon()
    dump = DumpReader(tmp_path / "main")
    assert [entry.name for entry in dump.entries.values()] == ["x"] and dump.end is None
    assert len(list(dump.directory.glob("*.raw"))) == 1


class TestOpen:
    def test_by_dump_by_run_and_by_process(self, tmp_path):
        written(tmp_path / "run" / "dump")
        written(tmp_path / "run" / "dump", header=Header("rank1", (), (0,), (), 1))
        for path, processes in (("run", 2), ("run/dump", 2), ("run/dump/rank1", 1)):
            assert len(open_dump(tmp_path / path)) == processes
        assert list(open_dump(tmp_path / "run")) == ["main", "rank1"]


def test_names_that_came_from_several_threads_are_said(tmp_path):
    writer = DumpWriter(tmp_path / "main", HEADER)
    for name in ("shared", "own"):
        writer.add(0, name, 1)
    thread = threading.Thread(target=writer.add, args=(0, "shared", 2))
    thread.start()
    thread.join()
    writer.add(1, "own", 3)
    writer.close("complete")
    assert DumpReader(tmp_path / "main").end.unordered == ("shared",)


@pytest.mark.gpu
def test_a_device_tensor_is_dumped_after_the_work_queued_on_its_stream(tmp_path):
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(200_000_000)
        tensor = torch.arange(1 << 20, device="cuda") * 3
        dump = written(tmp_path, (0, "x", tensor), header=Header("main", (), (0,), (), 1 << 24))
    assert dump.data(only(dump)) == (np.arange(1 << 20) * 3).tobytes()
