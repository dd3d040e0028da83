"""Finds monitor CSV files of both generations and says for each which rank, start and metric it belongs to.

v1: `{MonDD_HH-MM-SS}-rank{R}-{8 hex}/{metric}_{a}-{b}.csv`; the rank stands in the folder name alone, the clock has no
year, and every process start opens a new folder. v2: `rank_{R}/{group}_step{a}-{b}.csv` with a `scope` column.
"""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from detaudit.core.errors import UnreadableError

_FOLDER = re.compile(r"(?P<start>[\w-]{0,20})-rank(?P<rank>\d{1,5})-")
_FOLDER_V2 = re.compile(r"rank_(?P<rank>\d{1,5})$")
_FILE_V2 = re.compile(r"(?P<group>module|weight_grad|optimizer|param|cc)_step(?P<first>\d+)-(?P<last>\d+)\.csv$")
_FILE = re.compile(r"(?P<metric>[A-Za-z_]+?)_(?P<first>\d+)-(?P<last>\d+)\.csv$")
_LOOSE_RANK = re.compile(r"rank_?(?P<rank>\d{1,5})")
_CLOCK = re.compile(r"(?P<month>[A-Z][a-z]{2})(?P<day>\d{2})_(?P<time>\d{2}-\d{2}-\d{2})")
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")

V1_METRICS = (
    "actv", "actv_grad", "exp_avg", "exp_avg_sq", "grad_unreduced", "grad_reduced", "param_origin", "param_updated",
    "other",
)  # fmt: skip
V2_GROUPS = {
    ("weight_grad", "unreduced"): "grad_unreduced",
    ("weight_grad", "reduced"): "grad_reduced",
    ("module", "forward"): "actv",
    ("module", "backward"): "actv_grad",
    ("optimizer", "exp_avg"): "exp_avg",
    ("optimizer", "exp_avg_sq"): "exp_avg_sq",
    ("param", "param_origin"): "param_origin",
    ("param", "param_updated"): "param_updated",
}
"""The v1 metric that a v2 file group and scope stand for."""


@dataclass(frozen=True)
class MonitorFile:
    """One CSV file. `metric` is empty for v2, where each row's scope decides. `start` orders restarts of one rank."""

    path: Path
    rank: int
    metric: str
    group: str = ""
    first_step: int = 0
    start: tuple[int, ...] = ()
    folder: str = ""

    @property
    def version(self) -> int:
        return 2 if self.group else 1


def expand(source: str | os.PathLike[str]) -> list[Path]:
    """The CSV files behind a directory, a file or a glob, sorted by path. Raises UnreadableError when there are
    none."""
    text = os.fspath(source)
    path = Path(text)
    if path.is_file():
        return [path]
    if path.is_dir():
        found = [Path(folder) / name for folder, _, names in os.walk(path) for name in names if name.endswith(".csv")]
    else:
        found = []
        for match in glob.glob(text, recursive=True):
            found.extend(expand(match) if os.path.isdir(match) else [Path(match)])
        found = [match for match in found if match.suffix == ".csv"]
    if not found:
        raise UnreadableError(f"no CSV files in {text!r}; give a monitor output directory, a CSV file or a glob")
    return sorted(set(found))


def identify(path: Path) -> MonitorFile | None:
    """What a CSV file is, from its name and folder; None when it is no monitor file of a known metric."""
    folder = path.parent.name
    match = _FILE_V2.search(path.name)
    if match:
        rank = _FOLDER_V2.search(folder) or _LOOSE_RANK.search(path.name)
        number = int(rank["rank"]) if rank else 0
        return MonitorFile(path, number, "", match["group"], int(match["first"]), folder=folder)
    match = _FILE.search(path.name)
    if not match:
        return None
    metric = next((m for m in sorted(V1_METRICS, key=len, reverse=True) if _ends_with(match["metric"], m)), "")
    if not metric:
        return None
    named = _FOLDER.search(folder)
    rank = named or _LOOSE_RANK.search(path.name) or _LOOSE_RANK.search(folder)
    number = int(rank["rank"]) if rank else 0
    start = start_order(named["start"]) if named else ()
    return MonitorFile(path, number, metric, first_step=int(match["first"]), start=start, folder=folder)


def _ends_with(text: str, metric: str) -> bool:
    return text == metric or text.endswith("_" + metric)


def start_order(clock: str) -> tuple[int, ...]:
    """A sortable form of `Dec01_07-38-18`; empty when the folder carries no such clock."""
    match = _CLOCK.search(clock)
    if not match or match["month"] not in _MONTHS:
        return ()
    return (_MONTHS.index(match["month"]) + 1, int(match["day"]), *(int(part) for part in match["time"].split("-")))


def in_start_order(files: Sequence[MonitorFile]) -> list[MonitorFile]:
    """Files sorted by rank, start, first step. The clock has no year: starts in both halves of a winter (a December
    and a January) are taken as one run over New Year, so January counts as the later one."""
    months = {file.start[0] for file in files if file.start}
    wraps = bool(months) and max(months) - min(months) > 6

    def key(file: MonitorFile) -> tuple[object, ...]:
        start = file.start
        if wraps and start and start[0] <= 6:
            start = (start[0] + 12, *start[1:])
        return (file.rank, start, file.folder, file.first_step, str(file.path))

    return sorted(files, key=key)


def restarts(files: Iterable[MonitorFile]) -> dict[int, list[str]]:
    """Ranks that own more than one start folder, with those folders in start order."""
    folders: dict[int, list[str]] = {}
    for file in in_start_order(list(files)):
        seen = folders.setdefault(file.rank, [])
        if file.start and file.folder not in seen:
            seen.append(file.folder)
    return {rank: names for rank, names in folders.items() if len(names) > 1}
