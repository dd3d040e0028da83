"""A Launcher that runs the CUDA sources themselves on the CPU (`cuda_on_host.h`), for tests without a GPU."""

from __future__ import annotations

import ctypes
import re
import subprocess
from pathlib import Path

from detaudit.digest.kernels import kernel_path

HEADER = Path(__file__).parent / "cuda_on_host.h"
KERNEL = re.compile(r'extern "C" __global__ void\s+(?:__launch_bounds__\(\d+\)\s*)?(\w+)\(([^)]*)\)')


def entries(code):
    """C++ that enters each kernel of a source with its arguments taken from an array of pointers."""
    for name, parameters in KERNEL.findall(code):
        types = [p.strip().rsplit(" ", 1)[0] if "*" not in p else p.strip().rsplit("*", 1)[0] + "*"
                 for p in parameters.split(",")]  # fmt: skip
        values = ", ".join(f"*({kind}*)a[{index}]" for index, kind in enumerate(types))
        yield f"static void enter_{name}(void** a) {{ {name}({values}); }}"
        yield f'extern "C" int run_{name}(unsigned g, unsigned b, unsigned long long s, void** a) '
        yield f"{{ return launch(enter_{name}, g, b, s, a); }}"


class Simulator:
    """Compiles a source once a folder; `seed` chooses the schedule of each launch from then on.

    With `watched`, accesses are hooked: `races()` says how many the launches since had, and `preempt` N yields at one
    access in N."""

    def __init__(self, folder, watched=False):
        self.folder, self.seed, self.launches, self.watched, self.preempt = Path(folder), 0, [], watched, 0
        self._libraries = {}

    def launch(self, source, kernel, grid, block, arguments):
        assert block % 32 == 0 and 0 < grid
        self.launches.append((kernel, grid))
        boxes = [(ctypes.c_uint64 if a.itemsize == 8 else ctypes.c_uint32)(int(a)) for a in arguments]
        pointers = (ctypes.c_void_p * len(boxes))(*(ctypes.addressof(box) for box in boxes))
        self._library(source).set_preemption(self.preempt)
        entry = getattr(self._library(source), f"run_{kernel}")
        assert entry(grid, block, ctypes.c_uint64(self.seed), pointers) == 0, "threads wait at different barriers"

    def _library(self, source):
        if source not in self._libraries:
            self._libraries[source] = ctypes.CDLL(str(self.compile(kernel_path(source))))
        return self._libraries[source]

    def compile(self, path):
        code = path.read_text(encoding="utf-8")
        text = f'#include "{HEADER}"\n#include "{path}"\n' + "\n".join(entries(code))
        unit, library = self.folder / f"{path.stem}.cpp", self.folder / f"{path.stem}.so"
        unit.write_text(text, encoding="utf-8")
        flags = ["-O2", "-std=c++17", "-ffp-contract=off", "-fno-strict-aliasing", "-fPIC"]
        hooks = ["-fsanitize=thread"] if self.watched else []
        part = unit.with_suffix(".o")
        subprocess.run(["g++", *flags, *hooks, "-Wno-unknown-pragmas", "-c", "-o", part, unit], check=True, timeout=200)
        # Linked without the sanitizer: the hooks it calls are the header's own.
        subprocess.run(["g++", "-shared", "-o", library, part], check=True, timeout=200)
        return library

    def races(self):
        """The number of races since the last call, and the first: (address, block, thread) of both accesses."""
        first, found, where = (ctypes.c_uint64 * 6)(), 0, None
        for library in self._libraries.values():
            library.take_races.restype = ctypes.c_uint64
            count = library.take_races(first)
            if count and not found:
                where = (tuple(first[:3]), tuple(first[3:]))
            found += count
        return found, where
