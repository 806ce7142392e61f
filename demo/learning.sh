#!/usr/bin/env bash
# Measures learning: three seeds and two controls on the same fixed tasks; writes bench/results/learning.json. About an hour on two cores.
# Arguments go to grpo-learning (see its --help); a finished run in out/learning is not repeated.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/../e2e/setup/lib.sh"

trap 'say "stopped; what is finished stays in out/learning; make down removes the cluster"; exit 130' INT TERM
"$REPO/demo/prepare.sh"
. "$REPO/e2e/setup/env.sh"
cd "$REPO"
"$CARGO_TARGET_DIR/debug/grpo-learning" --tasks "$CACHE/demo/rows" "$@"
