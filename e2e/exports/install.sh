#!/usr/bin/env bash
# transformers and PEFT in a virtual environment of their own in the cache (5.5 GB: torch brings its CUDA libraries), for comparisons.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/../setup/lib.sh"

VENV="$CACHE/venv-transformers"
LIST="$REPO/e2e/exports/requirements.txt"

transformers() {
  local hash
  hash=$(hash_of "$LIST")
  if fresh transformers "$hash" && [ -x "$VENV/bin/python" ]; then note "as it was"; return; fi
  [ -x "$VENV/bin/python" ] || python3 -m venv "$VENV"
  "$VENV/bin/python" -m pip install --quiet --no-compile -r "$LIST"
  "$VENV/bin/python" -c 'import peft, torch, transformers'
  stamp transformers "$hash"
  note "$(du -sh "$VENV" | cut -f1)"
}

stage "transformers and PEFT" transformers
