#!/usr/bin/env bash
# Runs all tests, the slow ones too; those that need a GPU are skipped with a reason where there is none.
# Further arguments go to pytest: scripts/test.sh tests/cli -k json
#
# Two workers where pytest-xdist is there: most of the time is spent in child processes that import torch. A file's
# tests stay in one worker, so that never two programs of the zoo run at once.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=scripts/setup.sh
source scripts/setup.sh

workers=()
if "$PYTHON" -c 'import xdist' 2>/dev/null; then
  workers=(-n 2 --dist loadfile)
fi

# An empty -m undoes the deselection that pyproject.toml sets for a plain pytest.
exec "$PYTHON" -m pytest -m "" --durations=25 "${workers[@]}" "$@"
