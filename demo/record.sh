#!/usr/bin/env bash
# Records a run of the demo for the book, into docs/src/recorded: the run's screen at half time, the report, the
# episodes of the last iteration, and one of them turn by turn. The book shows these files unchanged. A demo that has
# already started, but not reached half time, is recorded too.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/../e2e/cluster/lib.sh"
. "$REPO/e2e/setup/env.sh"

TO="$REPO/docs/src/recorded"
MIDDLE=6
LAST=12

phase() { kubectl get grporun demo -o 'jsonpath={.status.phase}' 2> /dev/null || true; }

runs() { [[ $(phase) =~ ^(Pending|Queued|Provisioning|Running)$ ]]; }

# The demo that this script started has ended, or another one has.
is_over() { [ -n "${STARTED:-}" ] && ! kill -0 "$STARTED" 2> /dev/null || [[ $(phase) =~ ^(Succeeded|Failed)$ ]]; }

# Some episodes of the iteration have a verdict.
is_in_the_middle() {
  local at stage done
  at=$(kubectl get grporun demo -o 'jsonpath={.status.progress.iteration} {.status.progress.stage} {.status.progress.episodesDone}' 2> /dev/null || true)
  read -r at stage done <<< "$at"
  [ "$stage" = Rollout ] && [ "${at:-0}" -ge "$MIDDLE" ] && [ "${done:-0}" -ge 16 ]
}

is_in_the_middle_or_over() { is_in_the_middle || is_over; }

reported() { [ -e "$REPO/out/demo/demo-report.json" ]; }

# An episode that was resolved after a failed test shows more than one whose first guess was right.
longest_resolved() {
  "$PLUGIN" episodes demo --iteration "$LAST" --outcome resolved |
    awk '$1 ~ /__g[0-9]+__i[0-9]+$/ { print $4, $1 }' | sort -rn | awk 'NR == 1 { print $2 }'
}

mkdir -p "$TO" "$REPO/out"
PLUGIN="$CARGO_TARGET_DIR/debug/kubectl-grpo"
DEMO="$CARGO_TARGET_DIR/debug/grpo-demo"
if ! runs; then
  "$REPO/demo/demo.sh" > "$REPO/out/demo.log" 2>&1 &
  STARTED=$!
  trap 'kill "$STARTED" 2> /dev/null || true' EXIT
  await 5400 runs
fi
await 2400 is_in_the_middle_or_over
is_in_the_middle || die "the demo ended before its iteration $MIDDLE; see out/demo.log"
rm -f "$REPO/out/demo/demo-report.json"
kubectl get grporuns,sandboxpools.grpo.dev > "$TO/get.txt"
"$PLUGIN" status demo > "$TO/status.txt"
await 2400 reported || die "the demo made no report; see out/demo.log"
[ -z "${STARTED:-}" ] || wait "$STARTED"
"$DEMO" report --store "$REPO/out/demo/store" --tasks "$REPO/out/demo/tasks" --json "$(mktemp)" \
  --run-seconds "$(cat "$REPO/out/demo/run-seconds")" | sed '/^Where it is:/,$d' > "$TO/report.txt"
"$PLUGIN" episodes demo --iteration "$LAST" > "$TO/episodes.txt"
"$PLUGIN" show demo "$(longest_resolved)" --iteration "$LAST" > "$TO/episode.txt"
say "recorded in docs/src/recorded:" "$TO"/*.txt
