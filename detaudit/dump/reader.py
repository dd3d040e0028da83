"""Reads a dump. Bytes come back only if their length, SHA-256 and leaf digest are what the manifest says.

"Not a dump", "another version", "cut short" and "damaged" are four texts. Loads no torch.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from detaudit.core.env import DUMP_NAME
from detaudit.core.errors import UnreadableError
from detaudit.digest.spec import digest_bytes
from detaudit.dump import manifest
from detaudit.dump.manifest import End, Entry, Header


class DumpReader:
    """The dump of one process.

    `entries` are keyed by (step, leaf), the leaf with its occurrence. `end` is None where the process was killed or
    its disk was full: what stands before is whole, what would have followed is unknown.
    Raises UnreadableError for a directory whose manifest is missing, foreign, cut short or damaged.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.path = directory / manifest.NAME
        lines = self._lines()
        self.header = self._header(lines[0])
        self.entries: dict[tuple[int, str], Entry] = {}
        self.end: End | None = None
        before = hashlib.sha256(lines[0])
        for number, line in enumerate(lines[1:], start=1):
            if self.end is not None:
                raise self._damaged(number, "it follows the end")
            self._take(number, self._json(number, line), before.hexdigest())
            before.update(line)

    def data(self, entry: Entry) -> bytes:
        """The raw bytes of an entry that was not skipped, verified. Raises UnreadableError."""
        assert not entry.skipped, entry.skipped
        path = self.directory / entry.file
        if path.is_symlink() or not path.is_file():
            what = "is a link, which no dump holds" if path.is_symlink() else "is missing"
            raise UnreadableError(f"{path} {what}; it should hold {entry.leaf} of step {entry.step}")
        try:
            data = path.read_bytes()
        except OSError as error:
            raise UnreadableError(f"{path} cannot be read: {error.strerror}") from error
        if len(data) != entry.nbytes:
            cut = "is cut short" if len(data) < entry.nbytes else "is too long"
            raise UnreadableError(
                f"{path} {cut}: it holds {len(data)} of the {entry.nbytes} bytes of {entry.leaf}, step {entry.step}"
            )
        if hashlib.sha256(data).hexdigest() != entry.sha256:
            raise UnreadableError(f"{path} is damaged: its SHA-256 is not what {manifest.NAME} says")
        if f"{digest_bytes(entry.dtype, entry.shape, data):016x}" != entry.digest:
            raise UnreadableError(f"{self.path} is damaged: dtype, shape and digest of {entry.leaf} do not fit")
        return data

    def verify(self) -> None:
        """Read every raw file once. Raises UnreadableError at the first that is not as it was written."""
        for entry in self.entries.values():
            if not entry.skipped:
                self.data(entry)

    def _lines(self) -> list[bytes]:
        try:
            raw = self.path.read_bytes()
        except OSError as error:
            raise UnreadableError(f"{self.path} cannot be read: {error.strerror}") from error
        if not raw:
            raise UnreadableError(f"{self.path} is empty, not the manifest of a dump")
        lines = raw.splitlines(keepends=True)
        if not lines[-1].endswith(b"\n"):
            if len(lines) == 1:
                self._header(lines[0])  # a foreign file is foreign before it is cut short
            raise UnreadableError(f"{self.path} is cut short within line {len(lines)}; the dump is not whole")
        return lines

    def _header(self, line: bytes) -> Header:
        try:
            value = json.loads(line)
            found = value["format"]
        except (ValueError, KeyError, TypeError):
            found = None
        if found != manifest.FORMAT:
            raise UnreadableError(f"{self.path} is not the manifest of a detaudit dump: it begins with {line[:40]!r}")
        if value.get("version") != manifest.VERSION:
            raise UnreadableError(
                f"{self.path} has dump format {value.get('version')!r}; this release of detaudit reads "
                f"{manifest.VERSION}"
            )
        try:
            return manifest.header_from(value)
        except (KeyError, TypeError, ValueError) as error:
            raise self._damaged(0, f"it is malformed ({error!r})") from error

    def _json(self, number: int, line: bytes) -> dict[str, Any]:
        try:
            value = json.loads(line)
        except ValueError as error:
            raise self._damaged(number, "it is not JSON") from error
        if not isinstance(value, dict):
            raise self._damaged(number, "it is not an object")
        return value

    def _take(self, number: int, value: dict[str, Any], before: str) -> None:
        try:
            if "end" in value:
                self.end = manifest.end_from(value)
                if self.end.sha256 != before or self.end.entries != len(self.entries):
                    raise self._damaged(number, "the lines before the end are not those that were written")
                return
            entry = manifest.entry_from(value)
        except (KeyError, TypeError, ValueError) as error:
            if isinstance(error, UnreadableError):
                raise
            raise self._damaged(number, f"it is malformed ({error!r})") from error
        if entry.number != len(self.entries) or (entry.step, entry.leaf) in self.entries:
            raise self._damaged(number, f"entry {entry.number}, {entry.leaf} of step {entry.step}, is out of place")
        self.entries[entry.step, entry.leaf] = entry

    def _damaged(self, number: int, what: str) -> UnreadableError:
        return UnreadableError(f"{self.path}: line {number + 1} is damaged: {what}")


def open_dump(path: Path | str) -> dict[str, DumpReader]:
    """The dumps of all processes of a run, by process: from a dump, from the directory of a run that holds one, or
    from the directory of a single process. Raises UnreadableError."""
    path = Path(path)
    if not path.exists():
        raise UnreadableError(f"{path} does not exist; name a dump, or a run that was made with DETAUDIT_DUMP=1")
    if not path.is_dir():
        raise UnreadableError(f"{path} is a file; a dump is a directory")
    if (path / manifest.NAME).exists():
        return _by_process([path])
    root = path / DUMP_NAME if (path / DUMP_NAME).is_dir() else path
    places = sorted(file.parent for file in root.glob("*/" + manifest.NAME))
    if not places:
        raise UnreadableError(f"{path} holds no dump (no */{manifest.NAME}); make one with DETAUDIT_DUMP=1")
    return _by_process(places)


def _by_process(places: Iterable[Path]) -> dict[str, DumpReader]:
    found: dict[str, DumpReader] = {}
    for place in places:
        reader = DumpReader(place)
        if reader.header.process in found:
            other = found[reader.header.process].directory
            raise UnreadableError(f"{place} and {other} both hold the dump of process {reader.header.process!r}")
        found[reader.header.process] = reader
    return found
