"""Replays by content: on disk so that a killed diagnosis goes on, in memory so that prefixes are executed once.

The key of a replay covers the log's last chain, the target's code, what of the environment decides bits, and the
request. An entry that cannot be read or whose hash is wrong is executed again and never used.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from detaudit.trainsect.chainlog import read_loss, spell_loss, text_of
from detaudit.trainsect.model import Event, ReplayResult

FOLDER = "replays"
SNAPSHOT_BYTES = 2**28


def key_of(*parts: object) -> str:
    """SHA-256 over the canonical JSON of the parts."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()


class ResultCache:
    """Results in a directory, one file each, written whole or not at all."""

    def __init__(self, directory: Path | None) -> None:
        self._directory = directory
        self._memory: dict[str, ReplayResult] = {}

    def get(self, key: str) -> ReplayResult | None:
        if key not in self._memory and self._directory is not None:
            found = _read(self._directory / f"{key}.json", key)
            if found is not None:
                self._memory[key] = found
        return self._memory.get(key)

    def put(self, result: ReplayResult) -> None:
        self._memory[result.key] = result
        if self._directory is None:
            return
        self._directory.mkdir(parents=True, exist_ok=True)
        body = _value(result)
        text = text_of({"result": body, "sha256": hashlib.sha256(text_of(body).encode()).hexdigest()})
        temporary = self._directory / f".{result.key}.{os.getpid()}.tmp"
        try:
            temporary.write_text(text + "\n", "utf-8")
            os.replace(temporary, self._directory / f"{result.key}.json")
        finally:
            temporary.unlink(missing_ok=True)


def _value(result: ReplayResult) -> dict[str, Any]:
    return {
        "key": result.key,
        "start": result.start,
        "stop": result.stop,
        "evaluations": {str(step): spell_loss(loss) for step, loss in result.evaluations.items()},
        "states": {str(step): sha for step, sha in result.states.items()},
        "losses": {str(step): spell_loss(loss) for step, loss in result.losses.items()},
        "events": [asdict(event) for event in result.events],
    }


def _read(path: Path, key: str) -> ReplayResult | None:
    try:
        whole = json.loads(path.read_text("utf-8"))
        body = whole["result"]
        if hashlib.sha256(text_of(body).encode()).hexdigest() != whole["sha256"] or body["key"] != key:
            return None
        return ReplayResult(
            start=body["start"],
            stop=body["stop"],
            evaluations=_losses(body["evaluations"]),
            states={int(step): sha for step, sha in body["states"].items()},
            losses=_losses(body["losses"]),
            events=tuple(Event(**event) for event in body["events"]),
            key=key,
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _losses(rows: Mapping[str, str]) -> dict[int, float]:
    found = {int(step): read_loss(text) for step, text in rows.items()}
    return {step: loss for step, loss in sorted(found.items()) if loss is not None}


class Snapshots:
    """States in mid-replay by the key of their prefix; the ones unused for longest go first."""

    def __init__(self, limit: int = SNAPSHOT_BYTES) -> None:
        self._limit, self._held = limit, 0
        self._entries: OrderedDict[str, tuple[int, Any]] = OrderedDict()

    def __contains__(self, key: str) -> bool:
        return key in self._entries

    def get(self, key: str) -> Any:
        self._entries.move_to_end(key)
        return self._entries[key][1]

    def put(self, key: str, value: Any, size: int) -> None:
        if key in self._entries or size > self._limit:
            return
        self._entries[key] = (size, value)
        self._held += size
        while self._held > self._limit:
            _, (gone, _) = self._entries.popitem(last=False)
            self._held -= gone
