#!/usr/bin/env bash
# Trains the demo model's weights from its demonstrations and writes model.safetensors beside this script.
# GRPO_THREADS is the number of threads (2); GRPO_WARMSTART_OUT is another folder for the weights.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
. "$here/../../e2e/setup/env.sh"

"$here/demonstrations.sh"
cargo build --manifest-path "$here/../../Cargo.toml" -p grpo-trainer

# The trainer writes into the folder of its config, and an interrupted run must not change the committed weights: so it trains a
# copy.
out="${GRPO_WARMSTART_OUT:-$here}"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cp "$here/config.json" "$work/"
nice -n 10 "$CARGO_TARGET_DIR/debug/grpo-trainer" finetune --model "$work" --data "$GRPO_CACHE/demo/warmstart.jsonl" --tokens 8000000
mkdir -p "$out"
cp "$work/model.safetensors" "$out/.model.safetensors.new"
mv "$out/.model.safetensors.new" "$out/model.safetensors"
