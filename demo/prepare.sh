#!/usr/bin/env bash
# Prepares everything for a run on the local cluster, in order: tools, binaries, the cluster, images, the demo's tasks, the
# chart. Idempotent: skips what has not changed. Used by `make demo`, `make bench-learning` and the end-to-end tests.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/../e2e/setup/lib.sh"

SYSTEM=grpo-system
CHART="$REPO/charts/grpo-operator"

banner() { say "$(printf '%6ss  --- %s' "$(seconds_since "$START")" "$*")"; }

kube() { kubectl --kubeconfig "$KUBECONFIG" "$@"; }

# tasks: images of the demo's tasks and of the model, from real packages; then into the cluster.
tasks() {
  stage "demo tasks and model" "$REPO/demo/tasks/build.sh"
  "$REPO/e2e/cluster/images.sh" import-layout "$CACHE/demo/oci"
}

# operator: the chart. Helm does not update existing CRDs, so they are applied first; an operator with a new image under
# the same name is restarted.
operator() {
  local image there
  kube apply --server-side --force-conflicts -f "$CHART/crds"
  kube wait --for=condition=Established --timeout=30s -f "$CHART/crds"
  helm upgrade --install grpo-operator "$CHART" --namespace "$SYSTEM" --create-namespace --reset-values --wait --timeout 120s
  image=$("$REPO/e2e/cluster/images.sh" stamp operator)
  there=$(kube get namespace "$SYSTEM" -o jsonpath='{.metadata.annotations.grpo\.dev/operator-image}')
  if [ "$image" != "$there" ]; then
    [ -z "$there" ] || kube --namespace "$SYSTEM" rollout restart deployment
    kube annotate --overwrite namespace "$SYSTEM" "grpo.dev/operator-image=$image"
  fi
  kube --namespace "$SYSTEM" rollout status deployment --timeout=120s
}

START=$(now_ms)
. "$REPO/e2e/setup/env.sh"
banner "tools, binaries, cluster, images"
make --no-print-directory -C "$REPO" images
. "$REPO/e2e/setup/env.sh"
banner "tasks"
tasks
banner "operator"
stage "chart installed" operator
banner "ready"
