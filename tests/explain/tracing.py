"""Traces a function in the test's own process, as the autoload would trace a user's program."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch

from detaudit.capture import install
from detaudit.core.env import Settings
from detaudit.explain import optrace, tracefile
from detaudit.explain.tracefile import Trace


def traced(
    directory: Path, program: Callable[[], object], window: tuple[int, int] = (0, 0), reruns: int = 3
) -> tuple[Trace, object]:
    """The trace of `program`, and what it returned. The process is as before afterwards."""
    directory.mkdir(parents=True)
    recorder = install.install(Settings(str(directory), trace=window, trace_reruns=reruns))
    try:
        optrace.attach(recorder)
        result = program()
    finally:
        for observer in recorder.observers:
            observer.on_end()
        install.uninstall("complete")
        while torch._C._len_torch_dispatch_stack():
            torch._C._get_dispatch_stack_at(0).__exit__(None, None, None)
        torch.compile = optrace_compile
        torch.Generator = torch._C.Generator
    assert not list(directory.glob("recorder-error*"))
    return tracefile.read(directory / f"main{tracefile.SUFFIX}"), result


optrace_compile = torch.compile
"""The tracer watches it for the life of the process; a test must give it back."""
