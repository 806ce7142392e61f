#!/usr/bin/env bash
# Tests the official Python and JavaScript libraries of OpenAI and Anthropic against the encoders of the recording endpoint, over a socket: texts,
# streams, tools, errors. Installs them into $GRPO_CACHE (150 MB), and needs network only for that. Requires Node.js and npm.
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

# openai has the same version as in qwen-code 0.24.4.
NODE_LIBRARIES=(openai@5.11.0 @anthropic-ai/sdk@1.13.0)

node_libraries() {
  if fresh node-apis "${NODE_LIBRARIES[*]}" && [ -d "$CACHE/node-apis/node_modules" ]; then note "as it was"; return; fi
  npm install --silent --no-audit --no-fund --prefix "$CACHE/node-apis" "${NODE_LIBRARIES[@]}"
  stamp node-apis "${NODE_LIBRARIES[*]}"
}

command -v npm > /dev/null || die "npm is not installed, which brings the JavaScript libraries: install Node.js 20 or newer"
stage "Python libraries" libraries
stage "JavaScript libraries" node_libraries
. e2e/setup/env.sh
export APIS_PYTHON="$VENV/bin/python" APIS_NODE APIS_NODE_MODULES="$CACHE/node-apis"
APIS_NODE=$(command -v node)
cargo test -p grpo-driver -p grpo-features --test driver apis:: -- --ignored --nocapture --test-threads=1
