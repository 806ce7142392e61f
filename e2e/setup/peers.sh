#!/usr/bin/env bash
# verl and TRL, the peers of `make check-objective`, in a virtual environment of their own in the cache (6 GB, most of it torch).
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

VENV="$CACHE/venv-peers"
LIST="$REPO/e2e/objective/requirements.txt"

peers() {
  local hash
  hash=$(hash_of "$LIST")
  if [ -x "$VENV/bin/python" ] && fresh venv-peers "$hash"; then note "as it was"; return; fi
  [ -x "$VENV/bin/python" ] || python3 -m venv "$VENV"
  "$VENV/bin/python" -m pip install --quiet torch==2.11.0
  # Without dependencies: some of verl's are only for its processes, and the list has all that the called functions need.
  "$VENV/bin/python" -m pip install --quiet --no-deps -r "$LIST"
  stamp venv-peers "$hash"
}

stage "verl 0.9.1, TRL 1.16.0" peers
