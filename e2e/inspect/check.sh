#!/usr/bin/env bash
# Reads an exported log with Inspect's own reader: inspect_ai in a virtual environment in the cache (330 MB).
#   check.sh PLUGIN BENCH     the programs kubectl-grpo and grpo-bench-viewer
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/../setup/lib.sh"

PLUGIN=$(realpath "$1")
BENCH=$(realpath "$2")
INSPECT=0.3.285
VENV="$CACHE/venv-inspect"

inspect() {
  if [ -x "$VENV/bin/python" ] && fresh venv-inspect "$INSPECT"; then note "as it was"; return; fi
  [ -x "$VENV/bin/python" ] || python3 -m venv "$VENV"
  "$VENV/bin/python" -m pip install --quiet "inspect-ai==$INSPECT"
  stamp venv-inspect "$INSPECT"
}

stage "inspect_ai $INSPECT" inspect
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$BENCH" store "$work/store" --iterations 3 --groups 6 --samples 4 --hostile
"$PLUGIN" export --from "$work/store" --iteration 2 "$work/out"
"$VENV/bin/python" "$REPO/e2e/inspect/read.py" "$work/out"
