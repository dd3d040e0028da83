"""Death of the writer: SIGKILL at random moments, and a full disk."""

from __future__ import annotations

import random
import shutil
import signal
import subprocess
import sys
import textwrap
import time

import pytest
from trail_cases import digests

from detaudit.trail.reader import TrailReader

WRITER = """
import sys
from pathlib import Path
from detaudit.core.model import Layout, Leaf, RunManifest
from detaudit.trail.writer import TrailWriter

layout = Layout(tuple(Leaf(f"param.{index}") for index in range(int(sys.argv[2]))))
writer = TrailWriter(Path(sys.argv[1]), RunManifest())
def digests(step):
    return [(step * 0x9E3779B97F4A7C15 + leaf * 0xBF58476D1CE4E5B9 + 1) % 2**64 for leaf in range(len(layout.leaves))]
"""

FOREVER = (
    WRITER
    + """
for step in range(10**9):
    writer.step(step, layout, digests(step))
    sys.stdout.write(f"{step}\\n")
    sys.stdout.flush()
"""
)


def kill_at_random(path, chance, leaves):
    """Start a writer, kill it after a random time, and compare what it acknowledged with what is readable."""
    # Unbuffered: a read-ahead of readline() would keep acknowledgements from communicate().
    command = [sys.executable, "-c", FOREVER, str(path), str(leaves)]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0)
    child.stdout.readline()  # the first step is written
    time.sleep(chance.random() * 0.02)
    child.send_signal(signal.SIGKILL)
    rest, errors = child.communicate()
    assert errors == b""
    lines = rest.split(b"\n")[:-1]  # what follows the last line feed was not acknowledged whole
    acknowledged = int(lines[-1]) if lines else 0
    with TrailReader(path) as trail:
        trail.verify_chain()
        assert trail.steps == list(range(len(trail)))
        assert acknowledged + 1 <= len(trail) <= acknowledged + 2
        assert trail.outcome == ""
        assert trail.dropped_bytes < 8 * leaves + 40
        for position in (0, len(trail) // 2, len(trail) - 1):
            assert trail.digests(position) == digests(position, leaves)


@pytest.mark.parametrize("moment", range(10))
def test_sigkill_costs_at_most_the_unfinished_step(tmp_path, moment):
    kill_at_random(tmp_path / "t", random.Random(moment), leaves=[3, 200, 2000][moment % 3])


@pytest.mark.slow
@pytest.mark.parametrize("moment", range(50))
def test_sigkill_at_fifty_moments(tmp_path, moment):
    kill_at_random(tmp_path / "t", random.Random(1000 + moment), leaves=[1, 50, 1000, 5000][moment % 4])


FULL = """
step = 0
try:
    while step < 10**6:
        writer.step(step, layout, digests(step))
        step += 1
except OSError as error:
    print(step, error.errno, error.filename, writer.failed, writer.closed)
    print(error)
try:
    writer.note("end", outcome="disk full")
except OSError as error:
    print(error)
"""


def check_full_disk(done, path, limit, reason):
    assert done.stderr == "" and done.returncode == 0
    first, text, later = done.stdout.splitlines()
    steps, _, filename, failed, closed = first.split()
    assert (filename, failed, closed) == (str(path), "True", "True")
    assert reason in text and str(path) in text
    assert "the trail is closed" in later
    assert 0 < path.stat().st_size <= limit
    with TrailReader(path) as trail:
        assert trail.dropped_bytes == 0, "the file must be cut to its last whole frame"
        assert trail.steps == list(range(int(steps)))
        assert len(trail) > 10
        trail.verify_chain()


def test_file_size_limit(tmp_path):
    limit = 50_001
    code = f"import resource; resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit}))\n" + WRITER + FULL
    path = tmp_path / "t"
    done = subprocess.run([sys.executable, "-c", code, str(path), "100"], capture_output=True, text=True)
    check_full_disk(done, path, limit, "File too large")


def test_full_disk(tmp_path):
    """A tmpfs of 64 KiB in a mount namespace of the child: nothing is mounted for anybody else."""
    disk, keep = tmp_path / "disk", tmp_path / "keep"
    disk.mkdir()
    keep.mkdir()
    script = 'mount -t tmpfs -o size=64k none "$1" || exit 77; "$2" -c "$3" "$1/t" 100; cp "$1/t" "$4/t"'
    unshare = shutil.which("unshare")
    if unshare is None:
        pytest.skip("no unshare(1) here")
    command = [unshare, "-m", "sh", "-c", script, "sh", str(disk), sys.executable, WRITER + FULL, str(keep)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode == 77 or "unshare" in done.stderr:
        pytest.skip("mounting a tmpfs is not allowed here")
    done.stdout = done.stdout.replace(str(disk), str(keep))
    check_full_disk(done, keep / "t", 65536, "No space left on device")


def test_a_disk_that_is_full_from_the_start(tmp_path):
    code = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (20, 20))\n" + WRITER
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path / "t"), "1"], capture_output=True, text=True)
    assert "OSError: [Errno 27] File too large" in done.stderr
    assert (tmp_path / "t").stat().st_size == 16


def test_the_reader_of_a_growing_trail_sees_whole_steps_only(tmp_path):
    """A reader opened while the writer is at work: whatever moment it hits, the steps it shows are whole."""
    child = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(FOREVER), str(tmp_path / "t"), "500"], stdout=subprocess.PIPE, text=True
    )
    try:
        child.stdout.readline()
        for _ in range(10):
            with TrailReader(tmp_path / "t") as trail:
                assert trail.steps == list(range(len(trail)))
                assert trail.digests(len(trail) - 1) == digests(len(trail) - 1, 500)
    finally:
        child.kill()
        child.communicate()
