#!/usr/bin/env bash
# Checks the Python client: generated files, style, types, and its tests on the installed wheel, with the real plugin on a
# made store; once more with the oldest packages that it allows. Installs into $GRPO_CACHE/venv-python-client (400 MB).
#   check.sh PLUGIN BENCH     the programs kubectl-grpo and grpo-bench-viewer
# GRPO_STORE and GRPO_DEMO_REPORT name a store of the demo and its report: the tests then read it in place of the made one.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/../setup/lib.sh"

GRPO_KUBECTL_PLUGIN=$(realpath "$1")
BENCH=$(realpath "$2")
export GRPO_KUBECTL_PLUGIN
CLIENT="$REPO/operator/python"
VENV="$CACHE/venv-python-client"
OLDEST="$CACHE/venv-python-client-oldest"
# No files of Python's tools in the repository.
export PYTHONDONTWRITEBYTECODE=1 RUFF_NO_CACHE=true

# packages VENV REQUIREMENT...: a virtual environment with these packages.
packages() {
  local venv=$1 name hash
  shift
  name=$(basename "$venv")
  hash=$(hash_of "$@")
  if [ -x "$venv/bin/python" ] && fresh "$name" "$hash"; then note "as it was"; return; fi
  [ -x "$venv/bin/python" ] || python3 -m venv "$venv"
  "$venv/bin/python" -m pip install --quiet "$@"
  stamp "$name" "$hash"
}

wheel() {
  "$VENV/bin/python" -m build --wheel --no-isolation --outdir "$work/wheel" "$CLIENT"
  "$VENV/bin/python" -m pip install --quiet --force-reinstall --no-deps "$work"/wheel/*.whl
  "$OLDEST/bin/python" -m pip install --quiet --force-reinstall --no-deps "$work"/wheel/*.whl
  note "$(basename "$work"/wheel/*.whl)"
}

style() {
  "$VENV/bin/ruff" check "$CLIENT"
  "$VENV/bin/ruff" format --check "$CLIENT"
}

types() { (cd "$CLIENT" && "$VENV/bin/mypy" --cache-dir "$work/mypy"); }

# The types that users of the wheel see: the tests beside nothing else.
types_of_wheel() {
  cp -r "$CLIENT/tests" "$work/tests"
  (cd "$work/tests" && "$VENV/bin/mypy" --strict --python-executable "$VENV/bin/python" --cache-dir "$work/mypy-wheel" .)
}

# tests VENV: on the wheel that is installed there.
tests() {
  (cd "$CLIENT" && "$1/bin/python" -m pytest -p no:cacheprovider -q -rs) | tee "$work/said"
  note "$(tail -n 1 "$work/said")"
}

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT TERM
stage "packages of the client" packages "$VENV" -r "$CLIENT/requirements.txt"
stage "its oldest packages" packages "$OLDEST" pandas==2.2.0 pydantic==2.8.0 pyyaml==6.0 pytest==8.4.2
stage "generated files" "$VENV/bin/python" "$CLIENT/generate.py" --check
stage "style" style
stage "types" types
stage "wheel" wheel
stage "types of the wheel" types_of_wheel
if [ -z "${GRPO_STORE:-}" ]; then
  stage "store" "$BENCH" store "$work/store" --iterations 60 --groups 6 --samples 4 --hostile
  export GRPO_STORE="$work/store"
fi
stage "tests" tests "$VENV"
stage "tests with the oldest packages" tests "$OLDEST"
