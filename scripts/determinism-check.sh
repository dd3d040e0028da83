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
  --debug-dump         dump the replay state at steps 0, 1 and 2, and compare it buffer by buffer; if the runs
                       part later, once more with dumps of the steps around that
                       (DETAUDIT_DUMP_STEPS, _LEAVES, _DIR and _MAX_BYTES choose otherwise)
  --json               the verdict as JSON on stdout (and what --debug-dump found on stderr)
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
json=0
out=detaudit-out
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
    --leaves) options+=("$1" "$2"); shift ;;
    --out) options+=("$1" "$2") out="$2"; shift ;;
    --debug-dump) debug_dump=1 ;;
    --list-faults) list_faults=1 ;;
    --json) options+=(--json) json=1 ;;
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

# Spinning worker threads would steal the core that the other runs need. It moves timing only, never a bit of a correct
# program, and stands in the trail's manifest.
export OMP_WAIT_POLICY=passive

# On a busy machine two threads can end up sharing a core, and races then hide. Not for digits: its loader workers would
# inherit the binding.
if [[ "$workload" == per_rl ]]; then
  export OMP_PROC_BIND=true
fi

check=("$PYTHON" -m detaudit check --stats "${options[@]}" --
  "$PYTHON" -m "detaudit.workloads.$workload"
  --steps "${given_steps:-$steps}" --eval-steps "$eval_steps" --batch 128 "${arguments[@]}")

if ((!debug_dump)); then
  exec "${check[@]}"
fi

# The PER buffers: what the tree walk reads, what it finds, and what the tree is rebuilt from.
case "$workload" in
  per_rl) buffers=(sample_prng walked_tree replay_sample_indices priorities priority_tree) ;;
  *) buffers=('*') ;;
esac
leaves="$(printf 'checksums.%s,' "${buffers[@]}")"
export DETAUDIT_DUMP=1
export DETAUDIT_DUMP_STEPS="${DETAUDIT_DUMP_STEPS:-0,1,2,first-divergence}"
export DETAUDIT_DUMP_LEAVES="${DETAUDIT_DUMP_LEAVES:-${leaves%,}}"

checked=0
"${check[@]}" || checked=$?
((checked == 0 || checked == 1)) || exit "$checked"

# The check speaks of all steps, the dumps of a few: they can only add to a verdict of clean.
dumps="${DETAUDIT_DUMP_DIR:-$out}"
compared=0
((json)) && exec >&2
compare() {
  "$PYTHON" "$(dirname "${BASH_SOURCE[0]}")/compare-per-state.py" "$1/A" "$1/B" || compared=$?
}
compare "$dumps"
# Clean dumps of a diverged pair: it parted at a later step, and was repeated with dumps there.
if ((checked && !compared)) && [[ -d "$dumps/first-divergence" ]]; then
  printf '\n%s\n' "the pair again, with dumps around the step at which it first differed:"
  compare "$dumps/first-divergence"
fi
exit "$((checked ? checked : compared))"
