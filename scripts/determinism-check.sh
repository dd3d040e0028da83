#!/usr/bin/env bash
# Trains a reference workload twice and says whether the runs are bit-exact; names the first divergent step and leaf.
# Exit status: 0 clean, 1 diverged, 2 usage, 3 inconclusive.
set -euo pipefail

usage() {
  cat <<'TEXT'
usage: scripts/determinism-check.sh [--quick | --full] [options]

  --quick              200 training steps, 50 evaluation steps, batch 128 (default)
  --full               2000 training steps, 200 evaluation steps, batch 128
  --workload NAME      per_rl (prioritised-replay agent, default) or digits
  --device D           cpu (default), cuda or cuda:N
  --inject FAULT[,FAULT]
                       make the runs nondeterministic; --list-faults names the faults
  --list-faults        the options and faults of the workload
  --steps N            training steps
  --seed N             seed of every generator (0)
  --leaves GLOBS       compare only leaves that match, as in 'checksums.*'
  --out DIR            results (detaudit-out)
  --debug-dump         raw dumps of the first steps: not in this release, says so and goes on
  --json               the verdict as JSON on stdout
TEXT
}

fail() {
  printf 'error: %s\n' "$*" >&2
  usage >&2
  exit 2
}

steps=200
eval_steps=50
workload=per_rl
given_steps=""
debug_dump=0
list_faults=0
options=()
arguments=()

while (($#)); do
  case "$1" in
    --workload | --device | --inject | --steps | --seed | --leaves | --out)
      [[ $# -ge 2 && "$2" != --* ]] || fail "$1 takes a value"
      ;;
  esac
  case "$1" in
    --quick) steps=200 eval_steps=50 ;;
    --full) steps=2000 eval_steps=200 ;;
    --workload) workload="$2"; shift ;;
    --device | --inject | --seed) arguments+=("$1" "$2"); shift ;;
    --steps) given_steps="$2"; shift ;;
    --leaves | --out) options+=("$1" "$2"); shift ;;
    --debug-dump) debug_dump=1 ;;
    --list-faults) list_faults=1 ;;
    --json) options+=(--json) ;;
    -h | --help) usage; exit 0 ;;
    *) fail "unknown option: $1" ;;
  esac
  shift
done

case "$workload" in
  per_rl | digits) ;;
  *) fail "--workload $workload is not legal; it takes per_rl or digits" ;;
esac

# shellcheck source=scripts/setup.sh
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"

if ((list_faults)); then
  exec "$PYTHON" -m "detaudit.workloads.$workload" --help
fi

if ((debug_dump)); then
  printf '%s\n' "--debug-dump: raw dumps come with the next release; the check goes on without them" >&2
fi

# Spinning worker threads would steal the core that the other runs need. It moves timing only, never a bit of a correct
# program, and stands in the trail's manifest.
export OMP_WAIT_POLICY=passive

# On a busy machine two threads can end up sharing a core, and races then hide. Not for digits: its loader workers would
# inherit the binding.
if [[ "$workload" == per_rl ]]; then
  export OMP_PROC_BIND=true
fi

exec "$PYTHON" -m detaudit check --stats "${options[@]}" -- \
  "$PYTHON" -m "detaudit.workloads.$workload" \
  --steps "${given_steps:-$steps}" --eval-steps "$eval_steps" --batch 128 "${arguments[@]}"
