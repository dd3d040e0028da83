"""Parses monitor CSV text in blocks of whole lines: with pyarrow where it is installed, with the csv module otherwise.

Columns are found by header, whatever their order. A line that does not fit (wrong number of fields, text where a
number belongs) is named by its row number in the file and left out; the rest is kept.
"""

from __future__ import annotations

import csv
import importlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from detaudit.core.errors import UnreadableError
from detaudit.spike.cube import Floats, Ints

BLOCK_BYTES = 16 << 20


def load_pyarrow() -> ModuleType | None:
    """pyarrow.csv when the parquet extra is installed, else None."""
    try:
        return importlib.import_module("pyarrow.csv")
    except ImportError:
        return None


@dataclass(frozen=True)
class BrokenLine:
    """A line that was left out. `row` counts from 1, the header being row 1."""

    file: str
    row: int
    reason: str


@dataclass(frozen=True)
class Schema:
    """Which column of a file means what. Empty names are columns that this kind of file does not have."""

    columns: tuple[str, ...]
    name: tuple[str, ...]
    step: str
    statistics: tuple[str, ...]
    micro: str = ""
    vpp: str = ""

    @property
    def needed(self) -> tuple[str, ...]:
        parts = (self.vpp, *self.name, self.step, self.micro, *self.statistics)
        return tuple(dict.fromkeys(part for part in parts if part))


@dataclass
class Block:
    """Parsed rows of one or more files: parallel columns. `names` maps the numbers in `name` to text tuples."""

    names: list[tuple[str, ...]]
    name: Ints
    vpp: Ints
    step: Ints
    micro: Ints | None
    statistics: list[Floats]
    file_rows: list[int]
    """Rows that each source file gave, in the order the files were given."""
    broken: list[BrokenLine] = field(default_factory=list)


def read_header(path: Path) -> tuple[str, ...]:
    """The column names of a CSV file; empty for an empty file."""
    with path.open("rb") as stream:
        line = stream.readline()
    text = line.decode("utf-8-sig", "replace").rstrip("\r\n")
    return tuple(part.strip() for part in text.split(",")) if text else ()


def text_blocks(path: Path) -> Iterator[tuple[bytes, int]]:
    """Whole lines after the header in blocks of about BLOCK_BYTES, each with the row number of its first line."""
    with path.open("rb") as stream:
        stream.readline()
        row, rest = 2, b""
        while chunk := stream.read(BLOCK_BYTES):
            chunk = rest + chunk
            cut = chunk.rfind(b"\n") + 1
            whole, rest = chunk[:cut], chunk[cut:]
            if whole:
                yield whole, row
                row += whole.count(b"\n")
        if rest:
            yield rest + b"\n", row


def parse(schema: Schema, pieces: Sequence[tuple[Path, bytes, int]], arrow: ModuleType | None) -> Block:
    """Parse pieces (file, whole lines, row number of the first) that share a schema into one block."""
    if arrow is not None:
        block = _parse_arrow(schema, pieces, arrow)
        if block is not None:
            return block
    return _parse_plain(schema, pieces)


def _parse_arrow(schema: Schema, pieces: Sequence[tuple[Path, bytes, int]], arrow: ModuleType) -> Block | None:
    """One pyarrow call for all pieces; None when a line does not fit, so that the slow path can name it."""
    pa = importlib.import_module("pyarrow")
    text = b"".join(piece for _, piece, _ in pieces)
    rows = [piece.count(b"\n") for _, piece, _ in pieces]
    types: dict[str, Any] = dict.fromkeys(schema.statistics, pa.float64())
    types |= {column: pa.int64() for column in (schema.vpp, schema.step, schema.micro) if column}
    types |= {column: pa.dictionary(pa.int32(), pa.string()) for column in schema.name}
    try:
        table = arrow.read_csv(
            pa.BufferReader(text),
            read_options=arrow.ReadOptions(column_names=list(schema.columns), block_size=4 << 20),
            parse_options=arrow.ParseOptions(newlines_in_values=False, ignore_empty_lines=False),
            convert_options=arrow.ConvertOptions(
                include_columns=list(schema.needed), column_types=types, null_values=["", "nan", "NaN", "None"]
            ),
        )
    except (pa.ArrowInvalid, pa.ArrowKeyError):
        return None
    if table.num_rows != sum(rows):
        return None
    integers: dict[str, Ints] = {}
    for column in (schema.vpp, schema.step, schema.micro):
        if column:
            if table[column].null_count:
                return None
            integers[column] = table[column].to_numpy()
    names, numbers = _arrow_names([table[column].unify_dictionaries() for column in schema.name])
    return Block(
        names=names,
        name=numbers,
        vpp=integers[schema.vpp] if schema.vpp else np.zeros(len(numbers), dtype=np.int64),
        step=integers[schema.step],
        micro=integers[schema.micro] if schema.micro else None,
        statistics=[table[column].to_numpy() for column in schema.statistics],
        file_rows=rows,
    )


def _arrow_names(columns: Sequence[Any]) -> tuple[list[tuple[str, ...]], Ints]:
    texts: list[list[str]] = []
    combined: Ints | None = None
    for column in columns:
        chunks = column.chunks
        texts.append([str(text) for text in chunks[0].dictionary.to_pylist()] if chunks else [])
        numbers = [chunk.indices.fill_null(0).to_numpy(zero_copy_only=False) for chunk in chunks]
        part = np.concatenate(numbers).astype(np.int64) if numbers else np.zeros(0, dtype=np.int64)
        combined = part if combined is None else combined * len(texts[-1]) + part
    assert combined is not None
    if len(columns) == 1:
        return [(text,) for text in texts[0]], combined
    used, first, inverse = np.unique(combined, return_index=True, return_inverse=True)
    order = np.argsort(first)  # first-met order is the execution order of the hooks
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    names: list[tuple[str, ...]] = [
        (texts[0][int(code) // len(texts[1])], texts[1][int(code) % len(texts[1])]) for code in used[order]
    ]
    return names, place[inverse].astype(np.int64)


def _parse_plain(schema: Schema, pieces: Sequence[tuple[Path, bytes, int]]) -> Block:
    """The csv module: whole columns at once where every line of a piece fits, line by line where one does not."""
    rows = _Rows(schema)
    for path, text, first_row in pieces:
        lines = list(_split(text))
        if not rows.take_columns(lines):
            rows.take_lines(path, lines, first_row)
    return rows.block()


class _Rows:
    """Rows of one schema, gathered column by column."""

    def __init__(self, schema: Schema) -> None:
        self.schema = schema
        self.width = len(schema.columns)
        place = schema.columns.index
        self.name_places = [place(column) for column in schema.name]
        self.statistic_places = [place(column) for column in schema.statistics]
        self.integer_places = [place(c) if c else -1 for c in (schema.vpp, schema.step, schema.micro)]
        self.ids: dict[tuple[str, ...], int] = {}
        self.name: list[int] = []
        self.integers: tuple[list[int], list[int], list[int]] = ([], [], [])
        self.statistics: list[list[float]] = [[] for _ in schema.statistics]
        self.file_rows: list[int] = []
        self.broken: list[BrokenLine] = []

    def take_columns(self, lines: list[list[str]]) -> bool:
        """Take all lines, or none and say so when one of them does not fit."""
        if any(len(fields) != self.width for fields in lines):
            return False
        columns = list(zip(*lines, strict=True)) or [()] * self.width
        try:
            numbers = [list(map(_number, columns[i])) for i in self.statistic_places]
            integers = [list(map(int, columns[i])) if i >= 0 else [0] * len(lines) for i in self.integer_places]
        except ValueError:
            return False
        ids = self.ids
        keys = zip(*(columns[i] for i in self.name_places), strict=True)
        self.name.extend(ids.setdefault(key, len(ids)) for key in keys)
        for held, column in zip(self.integers, integers, strict=True):
            held.extend(column)
        for statistic, values in zip(self.statistics, numbers, strict=True):
            statistic.extend(values)
        self.file_rows.append(len(lines))
        return True

    def take_lines(self, path: Path, lines: list[list[str]], first_row: int) -> None:
        """Take the lines that fit and name the others."""
        before = len(self.name)
        for row, fields in enumerate(lines, first_row):
            if len(fields) != self.width:
                why = f"{len(fields)} fields where the header has {self.width}"
                self.broken.append(BrokenLine(str(path), row, why))
                continue
            try:
                numbers = [_number(fields[i]) for i in self.statistic_places]
                integers = [int(fields[i]) if i >= 0 else 0 for i in self.integer_places]
            except ValueError as error:
                self.broken.append(BrokenLine(str(path), row, str(error)))
                continue
            self.name.append(self.ids.setdefault(tuple(fields[i] for i in self.name_places), len(self.ids)))
            for held, integer in zip(self.integers, integers, strict=True):
                held.append(integer)
            for statistic, number in zip(self.statistics, numbers, strict=True):
                statistic.append(number)
        self.file_rows.append(len(self.name) - before)

    def block(self) -> Block:
        vpp, step, micro = (np.asarray(column, dtype=np.int64) for column in self.integers)
        return Block(
            names=list(self.ids),
            name=np.asarray(self.name, dtype=np.int64),
            vpp=vpp,
            step=step,
            micro=micro if self.schema.micro else None,
            statistics=[np.asarray(column, dtype=np.float64) for column in self.statistics],
            file_rows=self.file_rows,
            broken=self.broken,
        )


def _split(text: bytes) -> Iterator[list[str]]:
    """One list of fields a line. A line with a torn quote must not swallow those after it, so such text is split again
    line by line."""
    lines = text.decode("utf-8", "replace").removesuffix("\n").split("\n")
    try:
        rows = list(csv.reader(lines))
    except csv.Error:
        rows = []
    if len(rows) == len(lines):
        yield from rows
        return
    for line in lines:
        try:
            yield next(csv.reader([line]), [])
        except csv.Error:
            yield []


def _number(text: str) -> float:
    text = text.strip()
    return float("nan") if text in ("", "None") else float(text)


def choose_parser(requested: str) -> tuple[ModuleType | None, str]:
    """The parser to use for `auto`, `pyarrow` or `csv`, and its name. Raises UnreadableError if pyarrow is missing."""
    if requested == "csv":
        return None, "csv"
    arrow = load_pyarrow()
    if arrow is None and requested == "pyarrow":
        raise UnreadableError("pyarrow is not installed; install detaudit[parquet], or use the csv parser")
    return (arrow, "pyarrow") if arrow is not None else (None, "csv")


Progress = Callable[[str, int, int], None]
"""Called with (what is read, done, total)."""
