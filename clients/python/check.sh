#!/usr/bin/env bash
# Checks the client as continuous integration does: types, tests, the wheel, its installation in an empty environment,
# and the README's program.
# usage: check.sh [EXPORTER SIMULATOR]   (the exporter's program and libnvml_sim.so; without them the tests with the real exporter are skipped)
# The variable PYTHON selects the interpreter, which must be able to import mypy, build and twine. VRAM_EXPORTER_FRAMEWORKS is the path of
# a Python with JAX and TensorFlow; without it, PYTHON is used. The tests also run on the oldest and the newest supported Python.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
python=${PYTHON:-python3}
work=$(mktemp -d)
trap 'rm -rf -- "$work"' EXIT

"$python" -m mypy --cache-dir "$work/mypy"
[ $# -lt 2 ] || export VRAM_EXPORTER_BINARY=$1 VRAM_EXPORTER_SIMULATOR=$2
PYTHONPATH=src "$python" -m unittest discover -s tests -t .

# The oldest and the newest at the same time, because most of a test's time is waiting. They have no packages, so not the tests that need some.
modules=()
for file in tests/test_*.py; do
    [[ $file = tests/test_real_*.py ]] || modules+=("tests.$(basename "$file" .py)")
done
tests_on() { # PYTHON OTHER-PYTHON
    VRAM_EXPORTER_OTHER_PYTHON=$2 PYTHONPATH=src PYTHONDONTWRITEBYTECODE=1 "$1" -m unittest "${modules[@]}" >"$work/$1.log" 2>&1
}
found=() running=()
for version in python3.9 python3.14; do
    if "$version" -c '' 2>/dev/null; then
        found+=("$version")
    else
        echo "SKIPPED: the tests on $version: it is not installed" >&2
        [ "${VRAM_EXPORTER_TEST_REQUIRE_ALL:-}" != 1 ] || exit 1
    fi
done
for version in "${found[@]}"; do
    tests_on "$version" "$(command -v "${found[0]}")" &
    running+=("$!")
done
failed=0
for index in "${!found[@]}"; do
    wait "${running[$index]}" || failed=1
    printf '%s: ' "$("${found[$index]}" -VV | head -n 1)"
    tail -n 3 "$work/${found[$index]}.log" | tr '\n' ' '
    echo
    grep -o 'SKIPPED: .*' "$work/${found[$index]}.log" || true
done
[ "$failed" -eq 0 ] || {
    cat "$work"/python3.*.log >&2
    exit 1
}
unset VRAM_EXPORTER_BINARY VRAM_EXPORTER_SIMULATOR

"$python" -m build --quiet --outdir "$work/dist" .
"$python" -m twine check --strict "$work"/dist/*
"$python" -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check "$work"/dist/*.whl

# The program in README.md, with a model that needs no framework. It runs unarmed, armed by the .pth file, and armed by
# vram-run.
{
    echo 'import sys; model, batch = len, "batch"; print(getattr(sys.modules.get("vram_exporter"), "running", bool)())'
    # shellcheck disable=SC2016
    sed -n '/^```python$/,/^```$/p' README.md | sed '/^```$/q' | grep -v '^```'
} >"$work/program.py"
expect() { # FIRST-LINE COMMAND...
    local wanted=$1 output
    shift
    output=$(cd "$work" && "$@")
    if [ "$(head -n 1 <<<"$output")" != "$wanted" ] || ! grep -q '^forward: .* s, no framework uses a GPU$' <<<"$output"; then
        printf '%s: unexpected output:\n%s\n' "$*" "$output" >&2
        exit 1
    fi
}
expect False "$work/venv/bin/python" program.py
expect True env VRAM_EXPORTER_ARM=1 "$work/venv/bin/python" program.py
expect True "$work/venv/bin/vram-run" "$work/venv/bin/python" program.py
# As in examples/pod.yaml: the package is in a folder that the Python of another environment uses.
"$work/venv/bin/pip" install --quiet --disable-pip-version-check --no-deps --target "$work/vram" "$work"/dist/*.whl
expect True env VRAM_EXPORTER_ARM=1 PYTHONPATH="$work/vram/vram_exporter/_bootstrap" "$python" program.py
echo "the client is in order"
