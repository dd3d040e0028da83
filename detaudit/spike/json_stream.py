"""Reads the members of a large JSON object one by one, in memory bounded by the largest member.

Takes what dump writers really produce: bare NaN and Infinity, files cut short by a crash. A cut file yields its whole
members and then says so; a file that is broken in the middle is an error with its position.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from detaudit.core.errors import UnreadableError

CHUNK = 1 << 20
_SPACE = re.compile(r"[ \t\n\r]*")
_NUMBER = re.compile(r"[-+.0-9eE]*")
_DECODER = json.JSONDecoder()
_SLACK = 64


class _Cut(Exception):
    """The text ends in the middle of a value."""


class JsonMembers:
    """Members of the top-level object of a file; those of the members in `nested` are given one by one as well.

    Iterate it for (path, key, value): path is "" at the top level, else the name of the nested member. `truncated` is
    set afterwards when the file ended early.
    """

    def __init__(self, path: Path, nested: tuple[str, ...] = ()) -> None:
        self.path = path
        self.nested = nested
        self.truncated = ""
        self._text = ""
        self._at = 0
        self._consumed = 0
        self._ended = False

    def __iter__(self) -> Iterator[tuple[str, str, Any]]:
        with self.path.open(encoding="utf-8-sig", errors="replace") as self._stream:
            count, opened = 0, False
            try:
                opened = bool(self._next())
                if self._text[self._at] != "{":
                    raise UnreadableError(f"{self.path} is not a JSON object")
                for item in self._members(""):
                    count += 1
                    yield item
            except _Cut:
                if not opened:
                    raise UnreadableError(f"{self.path} is empty") from None
                self.truncated = f"{self.path} ends in the middle of a value after {count} whole members"

    def _members(self, path: str) -> Iterator[tuple[str, str, Any]]:
        self._at += 1
        if self._next() == "}":
            self._at += 1
            return
        while True:
            key = self._value()
            self._expect(":")
            if not path and key in self.nested and self._next() == "{":
                yield from self._members(str(key))
            else:
                yield path, str(key), self._value()
            if self._next() == "}":
                self._at += 1
                return
            self._expect(",")

    def _expect(self, mark: str) -> None:
        found = self._next()
        if found != mark:
            raise UnreadableError(
                f"{self.path}: {mark!r} expected at character {self._consumed + self._at}, found {found!r}"
            )
        self._at += 1

    def _next(self) -> str:
        """The next character that is no space, without taking it."""
        while True:
            match = _SPACE.match(self._text, self._at)
            assert match is not None
            self._at = match.end()
            if self._at < len(self._text):
                return self._text[self._at]
            self._fill()

    def _fill(self) -> None:
        if self._ended:
            raise _Cut
        more = self._stream.read(max(CHUNK, len(self._text) - self._at))
        self._ended = not more
        self._text = self._text[self._at :] + more
        self._consumed += self._at
        self._at = 0
        if not more:
            raise _Cut

    def _value(self) -> Any:
        self._next()
        while True:
            try:
                value, end = _DECODER.raw_decode(self._text, self._at)
            except json.JSONDecodeError as error:
                cut = error.pos >= len(self._text) - _SLACK or error.msg.startswith("Unterminated string")
                if not cut:
                    where = self._consumed + error.pos
                    raise UnreadableError(f"{self.path}: {error.msg} at character {where}") from error
                self._fill()
                continue
            # A number at the very end of the text may go on, and one before a cut-off `.` or `e` has not ended.
            rest = _NUMBER.match(self._text, end)
            if not isinstance(value, int | float) or (rest and rest.end() < len(self._text)):
                self._at = end
                return value
            self._fill()
