#!/usr/bin/env bash
# All GPU checks and figures of this repository, in one table, in under 5 minutes. Needs the repository, torch, CuPy and
# a CUDA device; nvcc only to compile the kernels ahead of time, which is skipped without it and said so.
# Exit 0: every check passed. 1: one failed or a goal was missed. 3: there is no usable GPU here, nothing was shown.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
PYTHON="${PYTHON:-python3}"
export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}"
limit=280
started=$SECONDS
declare -a names results

check() { # NAME COMMAND...: run what is left of the time limit allows, keep its outcome
    local name=$1 left=$((limit - (SECONDS - started))) code=0
    shift
    if ((left <= 0)); then code=124; else timeout "$left" "$@" || code=$?; fi
    names+=("$name")
    case $code in
        0) results+=("passed") ;;
        124) results+=("FAILED: out of time") ;;
        *) results+=("FAILED: exit $code") ;;
    esac
}

code=0
reason=$("$PYTHON" - <<'PY'
import sys
try:
    from detaudit.digest.launcher import KernelsUnavailableError, usable_cupy
except ImportError as error:
    print(error)
    sys.exit(3)
try:
    usable_cupy()
except KernelsUnavailableError as error:
    print(error)
    sys.exit(3)
PY
) || code=$?
if ((code == 3)); then
    echo "no GPU: $reason" >&2
    exit 3
elif ((code != 0)); then
    echo "error: $PYTHON could not look for a GPU (exit $code)" >&2
    exit 1
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
if command -v nvcc > /dev/null; then
    for source in kernels/*.cu; do
        check "nvcc ${source##*/}" nvcc -cubin -arch=native -Xptxas -v -o "$work/kernel.cubin" "$source"
    done
else
    names+=("nvcc kernels/*.cu")
    results+=("skipped: no nvcc on PATH")
fi
# A run in which every GPU test was skipped has shown nothing, so the skips are counted here.
gpu_tests() {
    "$PYTHON" -m pytest -m gpu -q -p no:cacheprovider tests | tee "$work/pytest.log"
    local code=${PIPESTATUS[0]}
    ((code == 0)) && grep -Eq '[0-9]+ passed' "$work/pytest.log"
}
export -f gpu_tests
export PYTHON work
check "tests marked gpu" bash -c gpu_tests
check "benchmarks/digest_gpu.py" "$PYTHON" benchmarks/digest_gpu.py

printf '\n%-32s %s\n' check result
failed=0
for index in "${!names[@]}"; do
    printf '%-32s %s\n' "${names[index]}" "${results[index]}"
    if [[ ${results[index]} == FAILED* ]]; then failed=1; fi
done
printf '%d s\n' $((SECONDS - started))
exit $failed
