#!/usr/bin/env bash
# Agents as their publishers ship them, unmodified, on twenty tasks each through the driver, with a scripted policy. Needs root, and
# the network for packages only: the agents run in a network namespace with only loopback, with the files of all their images at
# /opt/agent, which is created if missing. harnesses.sh [TEST...]: only tests whose names contain one of these words.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/../setup/lib.sh"
cd "$REPO"
. e2e/setup/env.sh
AGENTS=(qwen-code mini-swe-agent codex claude-code gemini-cli opencode pi aider gptme)
TREE="$CACHE/agents/all"

# all_agents: the files of every image in one folder.
all_agents() {
  local name
  rm -rf "$TREE"
  mkdir -p "$TREE"
  for name in "${AGENTS[@]}"; do cp -alf "$CACHE/agents/$name/agent/." "$TREE/"; done
}

e2e/agents/files.sh "${AGENTS[@]}"
stage "one folder of agents" all_agents
export GRPO_HARNESS_RESULTS="$CACHE/harnesses"
[ "$#" -gt 0 ] || { rm -rf "$GRPO_HARNESS_RESULTS"; set -- harnesses::; }
mkdir -p "$GRPO_HARNESS_RESULTS" /opt/agent
cargo test -p grpo-driver -p grpo-features --test driver --no-run
unshare --mount --net sh -euc '
  tree=$0
  mount --bind "$tree" /opt/agent
  mount -o remount,bind,ro /opt/agent
  ip link set lo up
  exec cargo test --offline -p grpo-driver -p grpo-features --test driver -- --ignored --test-threads=1 --nocapture "$@"
' "$TREE" "$@"
cargo build -p grpo-bench-report -p grpo-features --bin grpo-harness-report
"$CARGO_TARGET_DIR/debug/grpo-harness-report" "$GRPO_HARNESS_RESULTS" bench/results/harnesses.json
