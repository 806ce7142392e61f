#!/usr/bin/env bash
# Compares our models with those of others, on more cases than the tests do. transformers writes models of random geometry and we compute them; then
# transformers, PEFT and vLLM (its CPU build) load exported models that we trained, and report their logprobs. Installs into $GRPO_CACHE, 10 GB the
# first time, and needs network only for that. docs/src/models.md lists the results.
#   check.sh [COUNT [SEED]]     models of random geometry, by default 60 with seed 1
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/../setup/lib.sh"
cd "$REPO"
COUNT=${1:-60}
SEED=${2:-1}
TORCH=(-p grpo-native -p grpo-model -p grpo-trainer --features grpo-model/torch)
LIBRARIES=$(source e2e/setup/env.sh && echo "${LD_LIBRARY_PATH:-}")
PYTHON=$CACHE/venv-transformers/bin/python
VLLM=$CACHE/venv-vllm/bin/python
# Two cores are enough for a tiny model, and vLLM takes all cores by default.
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-2}
WORK=$(mktemp -d)
trap 'rm -rf "$WORK"' EXIT
trap 'exit 130' INT TERM

random_models() { "$PYTHON" libs/model/tests/golden/make.py --random "$COUNT" --seed "$SEED" --to "$WORK/models"; }

# ours TEST NAME: a test that is otherwise skipped; its figures are its output.
ours() {
  LD_LIBRARY_PATH=$LIBRARIES cargo test "${TORCH[@]}" --test "$1" -- --ignored --exact "$2" --nocapture | tee "$WORK/said"
  grep -q "1 passed" "$WORK/said"
  local name=${2##*::}
  note "$(grep "largest relative" "$WORK/said" || echo "${name//_/ }")"
}

# theirs PYTHON PEER: its last line is the summary.
theirs() {
  "$1" e2e/exports/load.py "$2" "$WORK/exports" | tee "$WORK/said"
  note "$(tail -n 1 "$WORK/said")"
}

e2e/exports/install.sh
e2e/engines/vllm.sh install
. e2e/setup/env.sh
unset LD_LIBRARY_PATH
stage "$COUNT models of random geometry" random_models
export GRPO_REFERENCE_MODELS=$WORK/models
stage "computed as transformers does" ours reference models_of_random_geometry_compute_what_transformers_does
export GRPO_EXPORTS=$WORK/exports
stage "trained and exported" ours trainer families::what_is_trained_is_exported_for_others
stage "loaded by transformers" theirs "$PYTHON" transformers
stage "loaded by PEFT" theirs "$PYTHON" peft
stage "loaded by vLLM" theirs "$VLLM" vllm
