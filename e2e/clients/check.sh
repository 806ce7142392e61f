#!/usr/bin/env bash
# Tests other projects' programs against a gateway: mini-swe-agent with our environment class, SWE-ReX's RemoteRuntime, and schemathesis on
# the gateway's API description. Installs each into a folder of its own in $GRPO_CACHE (900 MB in all), and needs network only for that.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/../setup/lib.sh"
cd "$REPO"
. e2e/setup/env.sh

# client NAME REQUIREMENTS: a virtual environment with these packages.
client() {
  local venv="$CACHE/clients/$1"
  if [ "$(cat "$venv/installed" 2> /dev/null)" = "$2" ]; then note "as it was"; return; fi
  rm -rf "$venv"
  python3 -m venv "$venv"
  "$venv/bin/python" -m pip install --quiet $2
  echo "$2" > "$venv/installed"
}

stage "mini-swe-agent 2.4.6" client mini-swe-agent mini-swe-agent==2.4.6
# Its client imports aiohttp without declaring it.
stage "swe-rex 1.4.0" client swe-rex "swe-rex==1.4.0 aiohttp==3.14.5"
stage "schemathesis 4.32.5" client schemathesis schemathesis==4.32.5
export MINI_SWE_AGENT_PYTHON="$CACHE/clients/mini-swe-agent/bin/python"
export SWE_REX_PYTHON="$CACHE/clients/swe-rex/bin/python"
export SCHEMATHESIS_PYTHON="$CACHE/clients/schemathesis/bin/python"
PLAIN=(--workspace --exclude grpo-native --exclude grpo-trainer)
cargo build "${PLAIN[@]}" --bin sandboxd
cargo test "${PLAIN[@]}" --test compat clients:: -- --ignored --test-threads=1 --nocapture
