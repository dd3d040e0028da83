#!/usr/bin/env bash
# Sourced by the other scripts: sets PYTHON to an interpreter that can import detaudit, installing it once if need be.
#
# An active environment that already imports detaudit is used as it is. Otherwise .venv in the repository is made with
# the versions of scripts/constraints.txt. A stamp remembers what was installed, so that a later call starts at once
# and a change of constraints or pyproject installs again.

if [[ "${BASH_SOURCE[0]}" == "$0" ]]; then
  echo "error: scripts/setup.sh is sourced by the other scripts; run scripts/determinism-check.sh or scripts/test.sh" >&2
  exit 2
fi

detaudit_root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"

detaudit_say() { printf '%s\n' "$*" >&2; }

detaudit_fail() {
  detaudit_say "error: $*"
  exit 2
}

# The first Python of at least 3.11 that can make an environment.
detaudit_find_python() {
  local candidate
  for candidate in python3.11 python3.12 python3.13 python3 python; do
    if "$candidate" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then
      printf '%s\n' "$candidate"
      return
    fi
  done
  return 1
}

detaudit_stamp() {
  { cat "$detaudit_root/scripts/constraints.txt" "$detaudit_root/pyproject.toml"; printf '%s\n' "$detaudit_root"; } | cksum
}

# pip's own output is shown only when it fails.
detaudit_pip() {
  local log="$detaudit_root/.venv/pip.log"
  detaudit_say "  pip install $*"
  if ! "$PYTHON" -m pip install --constraint "$detaudit_root/scripts/constraints.txt" "$@" \
    >"$log" 2>&1; then
    tail -n 20 "$log" >&2
    detaudit_fail "pip install $* failed (whole output: $log); check the network or the package index, then run again"
  fi
}

detaudit_install() {
  local base
  if "$PYTHON" -c 'import pip' >/dev/null 2>&1; then
    detaudit_say "bringing .venv up to date"
  else
    base="$(detaudit_find_python)" || detaudit_fail "no Python >= 3.11 with venv was found; install one, then run again"
    detaudit_say "setting up .venv with $("$base" --version 2>&1), once; this takes a few minutes"
    "$base" -m venv --clear "$detaudit_root/.venv" || detaudit_fail "$base -m venv failed; install Python's venv module"
  fi
  # torch first, on its own: a resolver that starts elsewhere may settle on a CUDA build of several gigabytes.
  detaudit_pip torch==2.13.0
  detaudit_pip hatchling editables
  detaudit_pip --no-build-isolation --editable "$detaudit_root[workloads]" pytest pytest-timeout pytest-xdist hypothesis mypy ruff
  detaudit_stamp >"$detaudit_root/.venv/detaudit-stamp"
}

detaudit_setup() {
  local active
  active="$(command -v python || true)"
  if [[ -n "$active" ]] \
    && (cd / && "$active" -c 'import detaudit, importlib.util as u; assert u.find_spec("torch")') >/dev/null 2>&1; then
    PYTHON="$active"
    detaudit_say "using the active environment: $PYTHON"
    return
  fi
  PYTHON="$detaudit_root/.venv/bin/python"
  if [[ ! -x "$PYTHON" || "$(cat "$detaudit_root/.venv/detaudit-stamp" 2>/dev/null)" != "$(detaudit_stamp)" ]]; then
    detaudit_install
  fi
}

detaudit_setup
