#!/usr/bin/env bash
# The sandbox server that is the peer of `make bench-sandbox`, in a virtual environment of its own in the cache.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

VENV="$CACHE/venv-swerex"

swerex() {
  if [ -x "$VENV/bin/swerex-remote" ] && compgen -G "$VENV/lib/python3*/site-packages/swe_rex-1.4.0.dist-info" > /dev/null; then
    note "as it was"
    return
  fi
  [ -x "$VENV/bin/python" ] || python3 -m venv "$VENV"
  "$VENV/bin/python" -m pip install --quiet "swe-rex==1.4.0"
}

stage "swe-rex 1.4.0" swerex
