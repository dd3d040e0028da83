"""detaudit: is this training run bit-exact when it runs again, and if not, which step, which tensor, and why?

Importing the package loads neither torch nor numpy; the public names below are loaded on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

__version__ = "0.1.0"
__all__ = ["Session", "__version__", "record"]

if TYPE_CHECKING:
    from detaudit.capture.session import Session, record

_PUBLIC = {"record": "detaudit.capture.session", "Session": "detaudit.capture.session"}


def __getattr__(name: str) -> object:
    if name in _PUBLIC:
        from importlib import import_module

        return getattr(import_module(_PUBLIC[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
