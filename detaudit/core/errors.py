"""Errors a user can meet. Each class carries the exit code that the command line returns for it."""

from __future__ import annotations

EXIT_CLEAN = 0
EXIT_DIVERGED = 1
EXIT_USAGE = 2
EXIT_INCONCLUSIVE = 3


class DetauditError(ValueError):
    """Base of every error meant for the user: says what happened, the offending value and the cure."""

    exit_code = EXIT_USAGE


class UsageError(DetauditError):
    """The call itself is wrong: an unknown option, an illegal value, a setting that fits nothing."""


class UnreadableError(DetauditError):
    """An input file exists but cannot be used."""


class NotATrailError(UnreadableError):
    """The file is not a detaudit trail at all."""


class TrailVersionError(UnreadableError):
    """The file is a detaudit trail, written in a version of the format that this release does not read."""


class TrailCorruptError(UnreadableError):
    """A frame of the trail does not match its checksum; the message names the frame."""


class InconclusiveError(DetauditError):
    """The evidence does not allow a verdict: refused, nothing recorded, or a run failed."""

    exit_code = EXIT_INCONCLUSIVE


class NotComparableError(InconclusiveError):
    """Two runs differ in something that decides bits (command, versions, thread counts)."""


class UnsupportedLeafError(DetauditError):
    """A value whose bytes cannot be read (meta, quantised, opaque). Carries the reason, never skipped silently."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason
