#!/usr/bin/env bash
# Random cases of the objective, computed by verl 0.9.1, by TRL 1.16.0 and by us. Installs both (6 GB), and needs network only
# for that.
#   check.sh            15,000 cases
#   check.sh --record   and writes some of them to trainer-image/objective/tests/peers.jsonl, which `make test-unit` reads
# GRPO_PEER_NUMBER and GRPO_PEER_SEED change the number and the choice of cases.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/../setup/lib.sh"
cd "$REPO"
"$REPO/e2e/setup/peers.sh"

CASES="$CACHE/objective-cases.jsonl"
SHORT=()
[ "${1:-}" != --record ] || SHORT=(--short 50 trainer-image/objective/tests/peers.jsonl)
"$CACHE/venv-peers/bin/python" e2e/objective/cases.py "${GRPO_PEER_NUMBER:-15000}" "$CASES" --seed "${GRPO_PEER_SEED:-1}" "${SHORT[@]}"
. e2e/setup/env.sh
GRPO_PEER_CASES="$CASES" cargo test -p grpo-objective -p grpo-features --test peers -- --nocapture
