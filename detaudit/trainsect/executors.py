"""Replays on any `concurrent.futures.Executor`: serial, processes, or a Dask cluster. A worker is trusted only after it
has passed the identity replay itself, with the recorder's thread count."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from detaudit.core.errors import InconclusiveError, UsageError
from detaudit.trainsect import gate
from detaudit.trainsect.execute import Execution, Request
from detaudit.trainsect.model import ReplayResult
from detaudit.trainsect.replay import TargetReplayer
from detaudit.trainsect.run import open_run

_workers: dict[Job, TargetReplayer] = {}


@dataclass(frozen=True)
class Job:
    """What a worker needs to replay: the run, the target, and the interval it must reproduce before it is trusted."""

    run: str
    target: str
    start: int
    stop: int
    cache: str = ""


class SerialExecutor(Executor):
    """Runs each call when it is submitted, in this process."""

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future


@contextmanager
def open_executor(text: str) -> Iterator[Executor]:
    """`serial`, `processes:N` or `dask:ADDRESS`. Raises UsageError for any other text, and where dask is missing."""
    kind, _, rest = text.partition(":")
    if kind == "serial" and not rest:
        yield SerialExecutor()
    elif kind == "processes" and rest.isdigit() and int(rest) >= 1:
        # spawn: a forked child would inherit torch's thread pools in an undefined state.
        with ProcessPoolExecutor(int(rest), mp_context=multiprocessing.get_context("spawn")) as pool:
            yield pool
    elif kind == "dask" and rest:
        with _dask_client(rest) as client:
            yield client.get_executor(pure=False)
    else:
        raise UsageError(f"--executor {text!r}: expected serial, processes:N or dask:ADDRESS")


def _dask_client(address: str) -> Any:
    try:
        from distributed import Client
    except ImportError:
        raise UsageError("--executor dask:ADDRESS needs dask: pip install 'detaudit[cluster]'") from None
    return Client(address)


def replay_on_worker(job: Job, request: Request) -> ReplayResult:
    """Executed by a worker: the identity replay once, then the request."""
    replayer = _workers.get(job)
    if replayer is None:
        run = open_run(job.run)
        replayer = TargetReplayer(run, Path(job.target), Path(job.cache) if job.cache else None)
        prove(replayer, job)
        _workers[job] = replayer
    return replayer.replay(
        request.start,
        request.stop,
        substitutions=request.substitutions,
        evaluate_at=request.evaluate_at,
        patch=request.patch,
        seed=request.seed,
    )


def prove(replayer: TargetReplayer, job: Job) -> None:
    """The identity replay of a worker against the recording. Raises InconclusiveError naming step and leaf."""
    execution = Execution(replayer.run, replayer.built, identity=True)
    gate.refuse(replayer.run, job.start, job.stop)
    execution.begin(job.start)
    request = Request(job.start, job.stop)
    execution.steps(job.start, job.stop, request)
    trace = execution.finish(request)
    if trace.mismatches:
        first = trace.mismatches[0]
        raise InconclusiveError(
            f"a worker does not reproduce the recording: step {first.step}, leaf {first.leaf}; its answers are refused"
        )


def replay_many(executor: Executor, job: Job, requests: Sequence[Request]) -> list[ReplayResult]:
    """The results of many requests in their order, whatever the order in which workers finish. Equal requests are
    executed once by a worker's cache; results are equal from every executor."""
    futures = [executor.submit(replay_on_worker, job, request) for request in requests]
    return [future.result() for future in futures]
