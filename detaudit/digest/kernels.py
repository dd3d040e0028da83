"""Where the CUDA sources are: in an installed wheel beside the package, in a checkout at its top."""

from __future__ import annotations

from pathlib import Path

from detaudit.core.errors import UnreadableError

PLACES = (Path(__file__).parents[1] / "kernels", Path(__file__).parents[2] / "kernels")
"""`detaudit/kernels` is what the wheel holds; `kernels` is the folder of the repository."""


def kernel_path(name: str) -> Path:
    """The file `NAME.cu`. Raises UnreadableError where an installation lacks it."""
    for place in PLACES:
        path = place / f"{name}.cu"
        if path.is_file():
            return path
    looked = " and ".join(map(str, PLACES))
    raise UnreadableError(f"kernel {name}.cu is missing (looked in {looked}); install detaudit again")
