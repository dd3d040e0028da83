"""What of this process decides bits, and whether it is what the recording had."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from detaudit.capture import environment
from detaudit.core import env

OWN = ("command", "code", "code_files", "toggle")
"""Entries of a manifest that speak of the program, which a target replaces; its code has a digest of its own."""


def deciding() -> dict[str, object]:
    """The decisive entries of this process's manifest, those of the program left out."""
    return {k: v for k, v in environment.manifest(env.Settings(".")).decisive.items() if k not in OWN}


def differences(settings: Mapping[str, Any], flags: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """(leaf, recorded, here) of each decisive entry that differs from the recording; `flags` are its determinism flags
    when training began, which stand above what the manifest saw earlier."""
    recorded = {k: v for k, v in settings.get("manifest", {}).get("decisive", {}).items() if k not in OWN}
    recorded |= {k: v for k, v in flags.items() if k in recorded}
    here = deciding()
    here["threads"] = torch.get_num_threads()
    keys = sorted({*recorded, *here})
    rows = [(f"manifest.{key}", recorded.get(key), here.get(key)) for key in keys]
    return [(key, str(a), str(b)) for key, a, b in rows if a != b]
