"""What the room may load, and how much memory a long trail may take."""

from __future__ import annotations

import subprocess
import sys
import tracemalloc

from detaudit.core.model import Layout, Leaf, RunManifest
from detaudit.trail.reader import TrailReader
from detaudit.trail.writer import TrailWriter


def test_writing_reading_and_exporting_loads_neither_torch_nor_numpy(tmp_path):
    code = """
import io, os, sys
from pathlib import Path
from detaudit.core.model import Layout, Leaf
from detaudit.trail.export import write_csv, write_jsonl
from detaudit.trail.manifest import base_manifest
from detaudit.trail.reader import TrailReader
from detaudit.trail.writer import TrailWriter
writer = TrailWriter(Path(sys.argv[1]), base_manifest(os.environ, sys.argv))
writer.step(0, Layout((Leaf("loss"),)), [1])
writer.close()
with TrailReader(sys.argv[1]) as trail:
    trail.verify_chain()
    write_csv(trail, io.StringIO())
    write_jsonl(trail, io.StringIO())
print(sorted({"torch", "numpy", "rich", "matplotlib"} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path / "t")], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_reading_ten_thousand_steps_of_a_thousand_leaves_is_memory_bounded(tmp_path):
    """80 MB on disk, mapped; what Python holds is a few hundred bytes a step, and a walk over all of it adds one
    step at a time."""
    layout = Layout(tuple(Leaf(f"param.{index}") for index in range(1000)))
    writer = TrailWriter(tmp_path / "t", RunManifest())
    for step in range(10_000):
        writer.step(step, layout, range(step, step + 1000))
    writer.close()
    assert (tmp_path / "t").stat().st_size > 80_000_000
    tracemalloc.start()
    try:
        with TrailReader(tmp_path / "t") as trail:
            opened = tracemalloc.get_traced_memory()[1]
            tracemalloc.reset_peak()
            for position in range(0, 10_000, 97):
                assert trail.record(position).digests[999] == position + 999
            walked = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert opened < 12 * 2**20
    assert walked < opened + 2**20
