"""Replacing a function of a class or module, and putting it back. Used where torch offers no hook point."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any


class Patches:
    """A set of replacements that can be undone in reverse order."""

    def __init__(self) -> None:
        self._undo: list[tuple[Any, str, Any]] = []

    def wrap(self, owner: Any, name: str, around: Callable[..., Any]) -> None:
        """Replace `owner.name` by a function that calls `around(original, *args, **kwargs)`."""
        original = getattr(owner, name)

        @functools.wraps(original)
        def replacement(*args: Any, **kwargs: Any) -> Any:
            return around(original, *args, **kwargs)

        self._undo.append((owner, name, original))
        setattr(owner, name, replacement)

    def replace(self, owner: Any, name: str, value: Any) -> None:
        """Put `value` in the place of `owner.name`."""
        self._undo.append((owner, name, getattr(owner, name)))
        setattr(owner, name, value)

    def remove(self) -> None:
        while self._undo:
            owner, name, original = self._undo.pop()
            setattr(owner, name, original)
