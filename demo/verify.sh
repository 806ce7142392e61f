#!/usr/bin/env bash
# Recomputes the demo's claims from token ids and grader logs alone; needs no cluster.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/../e2e/setup/lib.sh"
. "$REPO/e2e/setup/env.sh"

OUT="$REPO/out/demo"
[ -d "$OUT/store/journal" ] || die "$OUT/store is not there; make demo makes it"
cargo build --quiet -p grpo-demo -p grpo-features
exec "$CARGO_TARGET_DIR/debug/grpo-demo" verify --store "$OUT/store" --tasks "$OUT/tasks" --report "$OUT/demo-report.json" \
  --worker "$REPO/rollout-image/grader/worker.py" --grader-site "$CACHE/grader-site" "$@"
