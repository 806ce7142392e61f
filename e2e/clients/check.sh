#!/usr/bin/env bash
# Tests other projects' programs against a gateway: mini-swe-agent with our environment class, SWE-ReX's RemoteRuntime, and schemathesis on
# the gateway's API description. Installs each into a folder of its own in $GRPO_CACHE (900 MB in all), and needs network only for that.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/../setup/lib.sh"
cd "$REPO"
. e2e/setup/env.sh

e2e/clients/install.sh mini-swe-agent swe-rex schemathesis
export MINI_SWE_AGENT_PYTHON="$CACHE/clients/mini-swe-agent/bin/python"
export SWE_REX_PYTHON="$CACHE/clients/swe-rex/bin/python"
export SCHEMATHESIS_PYTHON="$CACHE/clients/schemathesis/bin/python"
PLAIN=(--workspace --exclude grpo-native --exclude grpo-trainer)
cargo build "${PLAIN[@]}" --bin sandboxd
cargo test "${PLAIN[@]}" --test compat clients:: -- --ignored --test-threads=1 --nocapture
