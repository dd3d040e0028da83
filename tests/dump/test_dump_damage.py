"""Dumps that are missing, foreign, cut short or damaged: four texts, exit code 2, and no byte of them believed."""

from __future__ import annotations

import json
import shutil

import pytest
import torch

from detaudit.core.errors import UnreadableError
from detaudit.dump.manifest import NAME, Header
from detaudit.dump.reader import DumpReader, open_dump
from detaudit.dump.writer import DumpWriter

HEADER = Header("main", ("train.py",), (0,), (), 10**6)


@pytest.fixture
def place(tmp_path):
    """The directory of a sound dump of two leaves."""
    writer = DumpWriter(tmp_path / "dump" / "main", HEADER)
    writer.add(0, "loss", torch.tensor([1.0, 2.0]))
    writer.add(0, "tree", torch.arange(8))
    writer.close("complete")
    return tmp_path / "dump" / "main"


def read_all(place):
    DumpReader(place).verify()


def refused(place, *words):
    with pytest.raises(UnreadableError) as caught:
        read_all(place)
    assert caught.value.exit_code == 2
    for word in words:
        assert word in str(caught.value)


def edit(place, number, **changes):
    """Change fields of a line of the manifest and put the end's own hash right, as a careful forger would."""
    import hashlib

    lines = [json.loads(line) for line in (place / NAME).read_bytes().splitlines()]
    lines[number].update(changes)
    head = b"".join(json.dumps(line, separators=(",", ":")).encode() + b"\n" for line in lines[:-1])
    if number != len(lines) - 1:
        lines[-1]["sha256"] = hashlib.sha256(head).hexdigest()
    (place / NAME).write_bytes(head + json.dumps(lines[-1], separators=(",", ":")).encode() + b"\n")


def raw(place, number):
    return sorted(place.glob("*.raw"))[number]


def test_a_sound_dump_is_sound(place):
    read_all(place)
    edit(place, 1)
    read_all(place)


class TestMissing:
    def test_directory(self, tmp_path):
        with pytest.raises(
            UnreadableError, match="does not exist; name a dump, or a run that was made with DETAUDIT_DUMP=1"
        ):
            open_dump(tmp_path / "no where")

    def test_dump_in_a_run(self, tmp_path):
        (tmp_path / "main.trail").touch()
        with pytest.raises(UnreadableError, match="holds no dump"):
            open_dump(tmp_path)

    def test_a_file(self, tmp_path):
        (tmp_path / "x").touch()
        with pytest.raises(UnreadableError, match="is a file; a dump is a directory"):
            open_dump(tmp_path / "x")

    def test_raw_file(self, place):
        raw(place, 1).unlink()
        refused(place, "000001-step0-tree.raw is missing", "tree of step 0")

    def test_a_link_is_not_followed(self, place, tmp_path):
        file = raw(place, 0)
        moved = shutil.move(file, tmp_path / "elsewhere")
        file.symlink_to(moved)
        refused(place, "is a link")

    def test_two_dumps_of_one_process(self, place):
        shutil.copytree(place, place.parent / "copy")
        with pytest.raises(UnreadableError, match="both hold the dump of process 'main'"):
            open_dump(place.parent)


class TestForeign:
    @pytest.mark.parametrize(
        "text", [b"{}\n", b"\x80\x04\x95pickle", b'{"format":"other"}\n', b"[1]\n", b"PK\x03\x04\n", b"3\n"]
    )
    def test_not_a_manifest(self, place, text):
        (place / NAME).write_bytes(text)
        refused(place, "is not the manifest of a detaudit dump: it begins with")

    def test_empty(self, place):
        (place / NAME).write_bytes(b"")
        refused(place, "is empty")

    @pytest.mark.parametrize("version", [0, 2, "1", None])
    def test_another_version(self, place, version):
        edit(place, 0, version=version)
        refused(place, f"has dump format {version!r}; this release of detaudit reads 1")


class TestCutShort:
    def test_the_manifest_at_every_byte(self, place):
        """A cut between lines is a killed run and shows in the missing end; any other is an error."""
        whole = (place / NAME).read_bytes()
        ends = {place for place, byte in enumerate(whole, 1) if byte == ord("\n")}
        for length in range(1, len(whole)):
            (place / NAME).write_bytes(whole[:length])
            if length in ends:
                assert DumpReader(place).end is None
                read_all(place)
            else:
                refused(place)

    @pytest.mark.parametrize(
        ("length", "words"), [(0, "holds 0 of the 8"), (7, "holds 7 of the 8"), (9, "is too long")]
    )
    def test_raw_file(self, place, length, words):
        data = raw(place, 0).read_bytes() + b"x"
        raw(place, 0).unlink()
        (place / "000000-step0-loss.raw").write_bytes(data[:length])
        refused(place, words, "loss, step 0")


class TestDamaged:
    def test_every_bit_of_a_raw_file(self, place):
        file = raw(place, 0)
        data = file.read_bytes()
        for bit in range(8 * len(data)):
            wrong = bytearray(data)
            wrong[bit // 8] ^= 1 << bit % 8
            file.unlink()
            file.write_bytes(wrong)
            refused(place, "is damaged: its SHA-256 is not what manifest.jsonl says")

    def test_every_byte_of_the_manifest(self, place):
        whole = (place / NAME).read_bytes()
        before_end = whole.rstrip(b"\n").rindex(b"\n")
        for offset in range(before_end):
            wrong = bytearray(whole)
            wrong[offset] ^= 1
            (place / NAME).write_bytes(wrong)
            refused(place)

    @pytest.mark.parametrize(
        ("changes", "words"),
        [
            ({"dtype": "int32"}, "dtype, shape and digest of loss do not fit"),
            ({"shape": [2, 1]}, "dtype, shape and digest of loss do not fit"),
            ({"shape": [3]}, "8 bytes are not float32[3]"),
            ({"dtype": "pickle"}, "malformed"),
            ({"digest": "0" * 16}, "dtype, shape and digest"),
            ({"entry": 1}, "out of place"),
            ({"step": -1}, "not a whole number >= 0"),
            ({"step": True}, "not a whole number >= 0"),
            ({"name": 5}, "not text"),
            ({"shape": None}, "malformed"),
            ({"name": "other"}, "000000-step0-other.raw is missing"),
            ({"nbytes": 4, "shape": [1]}, "is too long"),
        ],
        ids=str,
    )
    def test_a_careful_forger(self, place, changes, words):
        edit(place, 1, **changes)
        refused(place, words)

    @pytest.mark.parametrize("changes", [{"entries": 3}, {"sha256": "0" * 64}, {"bytes": "many"}], ids=str)
    def test_the_end(self, place, changes):
        edit(place, 3, **changes)
        refused(place, "line 4 is damaged")

    def test_a_line_after_the_end(self, place):
        with (place / NAME).open("ab") as file:
            file.write(b"{}\n")
        refused(place, "it follows the end")

    def test_a_line_that_is_no_object(self, place):
        lines = (place / NAME).read_bytes().splitlines(keepends=True)
        for text, words in ((b"[]\n", "not an object"), (b"nonsense\n", "not JSON")):
            (place / NAME).write_bytes(lines[0] + text)
            refused(place, words)

    def test_the_same_leaf_twice(self, place):
        edit(place, 2, name="loss")
        refused(place, "is out of place")

    def test_a_header_without_its_fields(self, place):
        edit(place, 0, process=None)
        refused(place, "line 1 is damaged")
