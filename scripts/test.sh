#!/usr/bin/env bash
# Runs all tests, the slow ones too; those that need a GPU are skipped with a reason where there is none.
# Further arguments go to pytest: scripts/test.sh tests/cli -k json
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=scripts/setup.sh
source scripts/setup.sh

# An empty -m undoes the deselection that pyproject.toml sets for a plain pytest.
exec "$PYTHON" -m pytest -m "" "$@"
