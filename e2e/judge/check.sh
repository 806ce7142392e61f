#!/usr/bin/env bash
# Random votes, prompts and step-wise rewards of a judge, computed by OpenClaw-RL's own functions and by ours. Fetches two files of its repository (MIT
# License), and needs network only for that.
#   check.sh            2,000 cases of each
#   check.sh --record   and writes a few others beside the tests of `make test-unit`
# GRPO_PEER_NUMBER and GRPO_PEER_SEED change the number and the choice of cases. GRPO_OPENCLAW: a folder with the
# repository.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/../setup/lib.sh"
cd "$REPO"

COMMIT=0d034dd5e65399fc1cc7c266feb9eddbb4c8c3a5
FOLDER="${GRPO_OPENCLAW:-$CACHE/openclaw-rl-$COMMIT}"
for file in swe-rl/swe_prm.py slime/slime/ray/rollout.py; do
    [ ! -s "$FOLDER/$file" ] || continue
    mkdir -p "$FOLDER/$(dirname "$file")"
    curl -fsSL --retry 3 "https://raw.githubusercontent.com/Gen-Verse/OpenClaw-RL/$COMMIT/$file" -o "$FOLDER/$file.part"
    mv "$FOLDER/$file.part" "$FOLDER/$file"
done

CASES="$CACHE/judge-cases"
python3 e2e/judge/cases.py "$FOLDER" "$CASES" --number "${GRPO_PEER_NUMBER:-2000}" --seed "${GRPO_PEER_SEED:-2}"
if [ "${1:-}" = --record ]; then
    SHORT="$CACHE/judge-cases-short"
    python3 e2e/judge/cases.py "$FOLDER" "$SHORT" --number 60 --seed 1
    cp "$SHORT/votes.jsonl" libs/records/src/judged/votes.jsonl
    cp "$SHORT/prompts.jsonl" rollout-image/driver/src/judge/prompt/prompts.jsonl
    cp "$SHORT/steps.jsonl" trainer-image/objective/src/advantage/steps.jsonl
fi
. e2e/setup/env.sh
GRPO_JUDGE_CASES="$CASES" cargo test -p grpo-records -p grpo-driver -p grpo-objective -p grpo-features --lib openclaw -- --nocapture
