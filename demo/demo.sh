#!/usr/bin/env bash
# Shows a policy that learns to fix bugs: starts everything, applies docs/examples/demo.yaml, follows the run, copies its store to
# out/demo and reports. The cluster stays up for inspection; `make down` removes every trace of it.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/../e2e/setup/lib.sh"

NAMESPACE=default
RUN=demo
OUT="$REPO/out/demo"
REPORT="$REPO/demo-report.json"

trap 'say "stopped; make down removes the cluster and everything in it"; exit 130' INT TERM

# last_words: prints the cluster's state after a failed run.
last_words() {
  kubectl get grporuns,inferencepools.grpo.dev,sandboxpools.grpo.dev,pods --namespace "$NAMESPACE" >&2 || true
  kubectl get grporun "$RUN" --namespace "$NAMESPACE" \
    -o jsonpath='{range .status.conditions[*]}{.type}={.status} {.reason}: {.message}{"\n"}{end}' >&2 || true
  say "look around with: kubectl --kubeconfig $KUBECONFIG describe grporun $RUN"
}

START=$(now_ms)
"$REPO/e2e/setup/requirements.sh"
"$REPO/demo/prepare.sh"
. "$REPO/e2e/setup/env.sh"
setup_seconds=$(seconds_since "$START")
demo="$CARGO_TARGET_DIR/debug/grpo-demo"

mkdir -p "$OUT"
rm -rf "$OUT/tasks"
cp -r "$CACHE/demo/rows" "$OUT/tasks"
kubectl delete grporun "$RUN" --namespace "$NAMESPACE" --ignore-not-found --wait > /dev/null
say "applying docs/examples/demo.yaml; in another terminal: kubectl --kubeconfig $KUBECONFIG get grporuns -w"
kubectl apply --namespace "$NAMESPACE" -f "$REPO/docs/examples/demo.yaml"
if ! "$demo" follow --namespace "$NAMESPACE" "$RUN" --seconds-to "$OUT/run-seconds"; then
  last_words
  exit 1
fi
kubectl get grporun "$RUN" --namespace "$NAMESPACE" -o wide
kubectl get grporun "$RUN" --namespace "$NAMESPACE" -o yaml > "$OUT/run.yaml"
"$demo" copy --namespace "$NAMESPACE" "$RUN" --to "$OUT/store"
"$demo" report --store "$OUT/store" --tasks "$OUT/tasks" --json "$REPORT" \
  --setup-seconds "$setup_seconds" --run-seconds "$(cat "$OUT/run-seconds")"
cp "$REPORT" "$OUT/"
say "grpo-demo is $demo"
say "the cluster is up (kubectl --kubeconfig $KUBECONFIG get all); make down removes it"
