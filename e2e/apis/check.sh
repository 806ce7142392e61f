#!/usr/bin/env bash
# The official Python libraries of OpenAI and Anthropic against the encoders of the recording endpoint, over a socket: texts, streams, tools, errors.
# Installs them into $GRPO_CACHE (100 MB), and needs network for that only.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/../setup/lib.sh"
cd "$REPO"

VENV="$CACHE/venv-apis"
LIST="$REPO/e2e/apis/requirements.txt"

libraries() {
  local hash
  hash=$(hash_of "$LIST")
  if [ -x "$VENV/bin/python" ] && fresh venv-apis "$hash"; then note "as it was"; return; fi
  [ -x "$VENV/bin/python" ] || python3 -m venv "$VENV"
  "$VENV/bin/python" -m pip install --quiet -r "$LIST"
  stamp venv-apis "$hash"
}

stage "OpenAI's and Anthropic's library" libraries
. e2e/setup/env.sh
APIS_PYTHON="$VENV/bin/python" cargo test -p grpo-driver -p grpo-features --test driver apis:: -- --ignored --nocapture --test-threads=1
