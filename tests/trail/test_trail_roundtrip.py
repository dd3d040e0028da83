"""What is written is read back; equal input gives equal bytes; torn tails, flipped bits and foreign files."""

from __future__ import annotations

import itertools
import struct
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from trail_cases import LAYOUT, MANIFEST, OTHER, assemble, digests, frame_bounds, payloads_of, small_trail, stats

from detaudit.core.errors import (
    NotATrailError,
    TrailCorruptError,
    TrailVersionError,
    UnreadableError,
    UsageError,
)
from detaudit.core.model import Layout, Leaf, RunManifest, Stats, StepKind
from detaudit.trail import frames
from detaudit.trail.frames import Kind
from detaudit.trail.reader import TrailReader
from detaudit.trail.writer import TrailWriter

words = st.integers(0, 2**64 - 1)
texts = st.text(max_size=12)
leaves = st.builds(
    Leaf,
    name=texts,
    dtype=texts,
    shape=st.lists(st.integers(0, 2**62), max_size=4).map(tuple),
    unsupported=texts,
    aliases=st.lists(texts, max_size=2).map(tuple),
)
layouts = st.builds(
    Layout, st.lists(leaves, max_size=4).map(tuple), st.sampled_from(StepKind), optimizer=st.text(max_size=5)
)
finite = st.floats(allow_nan=False)
rows = st.builds(Stats, words, finite, finite, finite, words, words)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)
manifests = st.builds(
    RunManifest, st.dictionaries(texts, json_values, max_size=3), st.dictionaries(texts, json_values, max_size=3)
)


@st.composite
def runs(draw):
    """(manifest, steps) where a step is (number, layout, digests, stats)."""
    pool = draw(st.lists(layouts, min_size=1, max_size=3))
    numbers = sorted(draw(st.sets(st.integers(0, 2**40), max_size=6)))
    steps = []
    for number in numbers:
        layout = draw(st.sampled_from(pool))
        count = len(layout.leaves)
        values = tuple(draw(st.lists(words, min_size=count, max_size=count)))
        steps.append((number, layout, values, tuple(draw(rows) for _ in range(count)) if draw(st.booleans()) else ()))
    return draw(manifests), steps


def write(path, manifest, steps):
    writer = TrailWriter(path, manifest)
    for step in steps:
        writer.step(*step)
    writer.note("end", outcome="ok")
    writer.close()
    return path.read_bytes()


@settings(max_examples=80, deadline=None)
@given(runs())
def test_round_trip(run):
    manifest, steps = run
    with tempfile.TemporaryDirectory() as directory:
        data = write(Path(directory, "a"), manifest, steps)
        assert write(Path(directory, "b"), manifest, steps) == data, "equal input must give equal bytes"
        with TrailReader(Path(directory, "a")) as trail:
            assert trail.manifest == manifest
            assert [(r.step, r.layout, r.digests, r.stats) for r in trail] == steps
            assert [r.chain for r in trail] == trail.chains
            assert trail.steps == [step[0] for step in steps]
            assert [trail.position(step) for step in trail.steps] == list(range(len(steps)))
            assert trail.has_stats == any(step[3] for step in steps)
            assert (trail.dropped_bytes, trail.outcome) == (0, "ok")
            trail.verify_chain()


@settings(max_examples=60, deadline=None)
@given(runs(), st.data())
def test_chains_are_equal_exactly_up_to_the_first_difference(run, data):
    manifest, steps = run
    changeable = [index for index, step in enumerate(steps) if step[2]]
    if not changeable:
        return
    at = data.draw(st.sampled_from(changeable))
    number, layout, values, _ = steps[at]
    leaf = data.draw(st.integers(0, len(values) - 1))
    other = list(steps)
    other[at] = (
        number,
        layout,
        (*values[:leaf], values[leaf] ^ 1 << data.draw(st.integers(0, 63)), *values[leaf + 1 :]),
        (),
    )
    with tempfile.TemporaryDirectory() as directory:
        write(Path(directory, "a"), manifest, steps)
        write(Path(directory, "b"), manifest, other)
        with TrailReader(Path(directory, "a")) as a, TrailReader(Path(directory, "b")) as b:
            same = [left == right for left, right in zip(a.chains, b.chains, strict=True)]
    assert same == [index < at for index in range(len(steps))]


def test_the_chain_covers_layout_and_step_number(tmp_path):
    renamed = Layout(tuple(Leaf(leaf.name + "x", leaf.dtype, leaf.shape) for leaf in LAYOUT.leaves))
    chains = set()
    for index, (step, layout) in enumerate([(0, LAYOUT), (1, LAYOUT), (0, renamed), (0, OTHER)]):
        write(tmp_path / str(index), MANIFEST, [(step, layout, (1, 2), ())])
        with TrailReader(tmp_path / str(index)) as trail:
            chains.add(trail.chains[0])
    assert len(chains) == 4


def test_a_layout_is_stored_once(tmp_path):
    steps = [(step, Layout(LAYOUT.leaves) if step % 2 else OTHER, digests(step), ()) for step in range(10)]
    write(tmp_path / "t", MANIFEST, steps)
    with TrailReader(tmp_path / "t") as trail:
        assert len(trail.layouts) == 2
        assert trail.frame_count == 1 + 2 + 10 + 1
        assert {trail.layout_id(position) for position in range(10)} == {0, 1}
        assert trail.first_uses() == [0, 1]


def test_notes_keep_their_kind(tmp_path):
    writer = TrailWriter(tmp_path / "t", MANIFEST)
    writer.note("rank", rank=3, note="overridden?")
    writer.note("end")
    writer.close()
    with TrailReader(tmp_path / "t") as trail:
        assert trail.notes == [{"note": "rank", "rank": 3}, {"note": "end"}]
        assert trail.outcome == ""


def test_a_run_that_did_not_end_by_itself_has_no_outcome(tmp_path):
    TrailWriter(tmp_path / "t", MANIFEST).close()
    with TrailReader(tmp_path / "t") as trail:
        assert (len(trail), trail.outcome, list(trail)) == (0, "", [])


def test_size_of_a_step(tmp_path):
    """Issue 2: at most 8.1 bytes a leaf and step without stats; 40 bytes of frame are all that comes on top."""
    layout = Layout(tuple(Leaf(f"param.{index}") for index in range(1000)))
    write(tmp_path / "a", MANIFEST, [(0, layout, digests(0, 1000), ())])
    write(tmp_path / "b", MANIFEST, [(step, layout, digests(step, 1000), ()) for step in range(11)])
    growth = (tmp_path / "b").stat().st_size - (tmp_path / "a").stat().st_size
    assert growth == 10 * (8 * 1000 + 40) <= 10 * 8.1 * 1000


# -- torn tails: every byte -------------------------------------------------------------------------------------------


def test_a_trail_cut_at_every_byte(tmp_path):
    data = small_trail(tmp_path / "whole").read_bytes()
    bounds = frame_bounds(data)
    with TrailReader(tmp_path / "whole") as trail:
        whole = list(trail)
        kinds = [kind for kind, _ in payloads_of(data)]
    cut = tmp_path / "cut"
    for length in range(len(data) + 1):
        cut.write_bytes(data[:length])
        if length == 0:
            with pytest.raises(NotATrailError, match="is empty, not a detaudit trail"):
                TrailReader(cut)
        elif length < 16:
            with pytest.raises(UnreadableError, match="an empty trail, cut within its first 16 bytes"):
                TrailReader(cut)
        elif length < bounds[1]:
            with pytest.raises(UnreadableError, match="an empty trail, it ends within its header frame"):
                TrailReader(cut)
        else:
            count = sum(bound <= length for bound in bounds[1:])
            with TrailReader(cut) as trail:
                assert trail.frame_count == count
                assert trail.dropped_bytes == length - bounds[count]
                assert list(trail) == whole[: kinds[:count].count(Kind.STEP)]
                assert trail.outcome == ("ok" if count == len(kinds) else "")
                trail.verify_chain()


# -- flipped bits: every one ------------------------------------------------------------------------------------------


def test_every_single_flipped_bit(tmp_path):
    data = small_trail(tmp_path / "whole", steps=3).read_bytes()
    bounds = frame_bounds(data)
    flipped = tmp_path / "flipped"
    flipped.write_bytes(data)
    for byte in range(len(data)):
        for bit in range(8):
            with flipped.open("r+b") as file:
                file.seek(max(byte - 1, 0))
                file.write(data[max(byte - 1, 0) : byte] + bytes([data[byte] ^ 1 << bit]))
            with pytest.raises(UnreadableError) as caught:
                TrailReader(flipped)
            error = caught.value
            if byte < 8:
                assert type(error) is NotATrailError
            elif byte < 12:
                assert type(error) is TrailVersionError
            elif byte < 16:
                assert type(error) is TrailCorruptError and "first 16 bytes" in str(error)
            else:
                number = sum(bound <= byte for bound in bounds[1:])
                assert type(error) is TrailCorruptError
                assert f"frame {number} at byte {bounds[number]} is damaged" in str(error), (byte, bit)


@settings(max_examples=200, deadline=None)
@given(st.integers(1, 4), st.integers(0, 2**32 - 1), st.integers(0, 39), st.integers(0, 39))
def test_the_head_check_finds_one_and_two_flipped_bits_for_certain(kind, length, first, second):
    def flip(bit):
        nonlocal kind_, length_
        if bit < 8:
            kind_ ^= 1 << bit
        else:
            length_ ^= 1 << (bit - 8)

    kind_, length_ = kind, length
    flip(first)
    if second != first:
        flip(second)
    assert frames.head_check(kind_, length_) != frames.head_check(kind, length)


def test_a_run_of_zeros_is_damage_not_a_tail(tmp_path):
    """What a power cut may leave: the length was written, the blocks were not."""
    data = small_trail(tmp_path / "whole").read_bytes()
    (tmp_path / "zeros").write_bytes(data + bytes(64))
    with pytest.raises(TrailCorruptError, match="its head does not match"):
        TrailReader(tmp_path / "zeros")


# -- other damage -----------------------------------------------------------------------------------------------------


def test_swapped_frames(tmp_path):
    data = small_trail(tmp_path / "whole").read_bytes()
    bounds = frame_bounds(data)
    parts = [data[start:end] for start, end in itertools.pairwise(bounds)]
    parts[2], parts[3] = parts[3], parts[2]
    (tmp_path / "swapped").write_bytes(data[:16] + b"".join(parts))
    with pytest.raises(TrailCorruptError, match=r"frame 2 at byte .*its checksum does not match its bytes"):
        TrailReader(tmp_path / "swapped")


@pytest.mark.parametrize("gone", range(1, 8))
def test_a_frame_taken_out_of_the_middle(tmp_path, gone):
    data = small_trail(tmp_path / "whole").read_bytes()
    bounds = frame_bounds(data)
    (tmp_path / "gone").write_bytes(data[: bounds[gone]] + data[bounds[gone + 1] :])
    with pytest.raises(TrailCorruptError, match=f"frame {gone} "):
        TrailReader(tmp_path / "gone")


def test_a_broken_chain_is_found_by_verify_chain(tmp_path):
    payloads = payloads_of(small_trail(tmp_path / "whole").read_bytes())
    kind, payload = payloads[2]
    payloads[2] = (
        kind,
        payload[: frames.STEP.size] + bytes([payload[frames.STEP.size] ^ 1]) + payload[frames.STEP.size + 1 :],
    )
    (tmp_path / "forged").write_bytes(assemble(payloads))
    with TrailReader(tmp_path / "forged") as trail:
        with pytest.raises(TrailCorruptError, match=r"frame 2 at byte .*its chain is broken"):
            trail.verify_chain()


def step_payload(step=0, layout=0, flag=0, body=16):
    return struct.pack("<QIIQ", step, layout, flag, 0) + bytes(body)


HEADER = (1, frames.pack_json({"decisive": {}, "context": {}}))
ONE_LAYOUT = (2, frames.pack_json(frames.layout_value(LAYOUT)))
MALFORMED = {
    "no header": ([ONE_LAYOUT], 0, "LAYOUT frame stands out of place"),
    "two headers": ([HEADER, HEADER], 1, "HEADER frame stands out of place"),
    "header without fields": ([(1, frames.pack_json({}))], 0, "malformed"),
    "header is a list": ([(1, frames.pack_json([]))], 0, "malformed"),
    "header is not packed": ([(1, b"{}")], 0, "malformed"),
    "unknown kind": ([HEADER, (9, b"")], 1, "kind 9 is unknown"),
    "unknown layout": ([HEADER, (3, step_payload())], 1, "malformed"),
    "too few digests": ([HEADER, ONE_LAYOUT, (3, step_payload(body=8))], 2, "do not fit layout 0"),
    "too many digests": ([HEADER, ONE_LAYOUT, (3, step_payload(body=24))], 2, "do not fit layout 0"),
    "stats missing": ([HEADER, ONE_LAYOUT, (3, step_payload(flag=1))], 2, "do not fit layout 0"),
    "short step": ([HEADER, ONE_LAYOUT, (3, b"123")], 2, "malformed"),
    "step repeated": ([HEADER, ONE_LAYOUT, (3, step_payload(5)), (3, step_payload(5))], 3, "step 5 follows step 5"),
    "step back": ([HEADER, ONE_LAYOUT, (3, step_payload(5)), (3, step_payload(4))], 3, "step 4 follows step 5"),
    "note without kind": ([HEADER, (4, frames.pack_json({"a": 1}))], 1, "malformed"),
    "layout without leaves": ([HEADER, (2, frames.pack_json({"kind": "update"}))], 1, "malformed"),
    "layout of a foreign kind": (
        [HEADER, (2, frames.pack_json({"kind": "x", "optimizer": "", "leaves": []}))],
        1,
        "mal",
    ),
    "leaf with a number for a shape": (
        [HEADER, (2, frames.pack_json({"kind": "update", "optimizer": "", "leaves": [["w", "f", 3]]}))],
        1,
        "malformed",
    ),
}


@pytest.mark.parametrize("case", MALFORMED)
def test_whole_frames_with_malformed_payloads_name_the_frame(tmp_path, case):
    payloads, number, reason = MALFORMED[case]
    (tmp_path / "t").write_bytes(assemble(payloads))
    with pytest.raises(TrailCorruptError, match=f"frame {number} .*{reason}"):
        TrailReader(tmp_path / "t")


@pytest.mark.parametrize("version", [0, 2, 255, 2**32 - 1])
def test_another_version(tmp_path, version):
    data = bytearray(small_trail(tmp_path / "whole").read_bytes())
    struct.pack_into("<I", data, 8, version)
    (tmp_path / "t").write_bytes(data)
    with pytest.raises(TrailVersionError, match=f"has trail format {version}; this release of detaudit reads 1"):
        TrailReader(tmp_path / "t")


FOREIGN = {"png": b"\x89PNG\r\n\x1a\n" + bytes(100), "text": b"hello, world\n" * 5, "near": b"DETAUDIX" + bytes(40)}
FOREIGN |= {"one byte": b"x", "short": b"DETX", "zeros": bytes(64)}


@pytest.mark.parametrize("case", FOREIGN)
def test_not_a_trail(tmp_path, case):
    (tmp_path / "t").write_bytes(FOREIGN[case])
    with pytest.raises(NotATrailError, match="is not a detaudit trail: it begins with"):
        TrailReader(tmp_path / "t")


def test_a_directory_and_a_missing_file(tmp_path):
    with pytest.raises(UnreadableError, match="cannot be read: Is a directory"):
        TrailReader(tmp_path)
    with pytest.raises(UnreadableError, match="cannot be read: No such file"):
        TrailReader(tmp_path / "missing")


def test_the_three_texts_are_three(tmp_path):
    """Not our file, another version, torn: a user must be able to tell them apart, and all exit with 2."""
    assert len({NotATrailError, TrailVersionError, TrailCorruptError}) == 3
    assert {error.exit_code for error in (NotATrailError, TrailVersionError, TrailCorruptError)} == {2}


# -- the writer -------------------------------------------------------------------------------------------------------


def test_an_existing_file_is_refused_and_untouched(tmp_path):
    path = small_trail(tmp_path / "t")
    before = path.read_bytes()
    with pytest.raises(UsageError, match="exists already; a trail is never overwritten"):
        TrailWriter(path, MANIFEST)
    assert path.read_bytes() == before


def test_a_missing_directory_is_an_oserror(tmp_path):
    with pytest.raises(FileNotFoundError):
        TrailWriter(tmp_path / "missing" / "t", MANIFEST)


def test_wrong_counts_are_a_programmers_error(tmp_path):
    writer = TrailWriter(tmp_path / "t", MANIFEST)
    with pytest.raises(AssertionError, match="2 leaves, 1 digests"):
        writer.step(0, LAYOUT, (1,))
    with pytest.raises(AssertionError, match="1 stats"):
        writer.step(0, LAYOUT, (1, 2), stats(0)[:1])
    writer.close()
    with TrailReader(tmp_path / "t") as trail:
        assert len(trail) == 0


def test_a_closed_writer_says_so(tmp_path):
    writer = TrailWriter(tmp_path / "t", MANIFEST)
    writer.close()
    writer.close()
    with pytest.raises(OSError, match="the trail is closed"):
        writer.step(0, LAYOUT, (1, 2))


def test_frames_appear_in_the_file_as_they_are_acknowledged(tmp_path):
    writer = TrailWriter(tmp_path / "t", MANIFEST)
    for step in range(3):
        writer.step(step, LAYOUT, digests(step))
        with TrailReader(tmp_path / "t") as trail:
            assert trail.steps == list(range(step + 1))
    writer.close()


@pytest.mark.parametrize("written", ["nothing", "a part", "everything"])
def test_an_interrupt_inside_a_write_costs_that_step_and_no_more(tmp_path, monkeypatch, written):
    """Ctrl-C may strike between the write and the bookkeeping; the trail goes on without a gap in its chain."""
    import os

    writer = TrailWriter(tmp_path / "t", MANIFEST)
    writer.step(0, LAYOUT, digests(0))
    real = os.write

    def interrupted(file, data):
        real(file, data[: {"nothing": 0, "a part": 11, "everything": len(data)}[written]])
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", interrupted)
        with pytest.raises(KeyboardInterrupt):
            writer.step(1, OTHER, digests(1))
    writer.step(2, OTHER, digests(2))
    writer.note("end", outcome="interrupted")
    writer.close()
    with TrailReader(tmp_path / "t") as trail:
        trail.verify_chain()
        assert (trail.steps, trail.outcome, trail.dropped_bytes) == ([0, 2], "interrupted", 0)
        assert [record.layout for record in trail] == [LAYOUT, OTHER]


def test_short_writes_are_continued(tmp_path, monkeypatch):
    import os

    real = os.write
    monkeypatch.setattr(os, "write", lambda file, data: real(file, data[:7]))
    small_trail(tmp_path / "slow")
    monkeypatch.undo()
    assert (tmp_path / "slow").read_bytes() == small_trail(tmp_path / "fast").read_bytes()


def test_layout_json_is_lossless_and_small():
    for layout in (LAYOUT, OTHER, Layout(())):
        assert frames.layout_from(frames.layout_value(layout)) == layout
    assert frames.layout_value(Layout((Leaf("loss"),)))["leaves"] == [["loss"]]


def test_closing_a_reader_frees_the_map(tmp_path):
    trail = TrailReader(small_trail(tmp_path / "t"))
    next(iter(trail))
    trail.close()
    with pytest.raises(ValueError, match="released"):
        trail.digests(0)
