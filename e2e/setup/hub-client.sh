#!/usr/bin/env bash
# The hub's own client, the peer of `make bench-hub`, in a virtual environment of its own in the cache.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

VENV="$CACHE/venv-hub"

hub_client() {
  if compgen -G "$VENV/lib/python3*/site-packages/huggingface_hub-1.33.0.dist-info" > /dev/null; then
    note "as it was"
    return
  fi
  [ -x "$VENV/bin/python" ] || python3 -m venv "$VENV"
  "$VENV/bin/python" -m pip install --quiet "huggingface_hub==1.33.0"
}

stage "huggingface_hub 1.33.0" hub_client
