#!/usr/bin/env bash
# `make test-kind`: a kind cluster with two nodes that claim GPUs, the chart, a run, and pods on the GPUs. Where a container
# engine answers and kind is installed, those are used, with kind's own node image. Elsewhere both are made of what package
# registries have (parts.sh, node-image.sh), in namespaces that end with this script.
# Each step that passed is a line of $GRPO_CACHE/kind/steps; the first that fails ends the test.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/../cluster/lib.sh"

KIND="$CACHE/kind"
STEPS="$KIND/steps"
PLAIN=(--workspace --exclude grpo-native --exclude grpo-trainer --exclude grpo-bench-trainer)

# step NAME COMMAND...
step() {
  local name=$1 start
  shift
  start=$(now_ms)
  say "--- $name"
  "$@" || { say "error: the step \"$name\" failed; these passed:"; cat "$STEPS" >&2; return 1; }
  printf '%6ss  %s\n' "$(seconds_since "$start")" "$name" >> "$STEPS"
}

privileged() { docker run --rm --privileged --entrypoint /bin/true "$GRPO_KIND_IMAGE"; }

tests() { (cd "$REPO" && . e2e/setup/env.sh && cargo test "${PLAIN[@]}" --test e2e -- --ignored --test-threads=1 --nocapture "$@"); }

# removed: also what a test that was killed has left of its nodes' disks.
removed() {
  kind delete cluster --name grpo --kubeconfig "$CLUSTER_KUBECONFIG"
  [ -z "${GRPO_ENGINE_OFFLINE:-}" ] || docker volume prune --force > /dev/null
}

steps() {
  [ -z "${GRPO_KIND_IMAGE:-}" ] || step "privileged container" privileged
  step "nodes ready" "$CLUSTER_DIR/kind.sh" up
  step "images, tasks and chart" "$REPO/demo/prepare.sh"
  step "pods on two nodes with GPUs" tests gpus::
  step "end-to-end tests" tests tools:: cluster:: isolation:: tenants::policies
}

case "${1:-}" in
  --inside)
    # The name's host is not reachable from here: the engine must have the image.
    "$REPO/e2e/kind/node-image.sh" load "$GRPO_KIND_IMAGE"
    removed
    steps
    removed
    ;;
  "")
    mkdir -p "$KIND"
    : > "$STEPS"
    # The same kubeconfig serves both.
    GRPO_CLUSTER=local "$CLUSTER_DIR/down.sh"
    unset GRPO_CLUSTER
    if uses_kind; then
      removed
      steps
      removed
    else
      [ "$(id -u)" -eq 0 ] || die "without a container engine and kind this test needs root, to make namespaces"
      "$REPO/e2e/setup/setup.sh"
      step "parts" "$REPO/e2e/kind/parts.sh"
      step "node image" "$REPO/e2e/kind/node-image.sh" build
      # In the namespaces there is no way to a registry.
      make --no-print-directory -C "$REPO" build
      "$REPO/demo/tasks/build.sh"
      "$CLUSTER_DIR/images.sh" base-tar > /dev/null
      GRPO_KIND_IMAGE=grpo.dev/kind-node:local GRPO_ENGINE_OFFLINE=1 "$REPO/e2e/kind/engine.sh" "${BASH_SOURCE[0]}" --inside
    fi
    say "passed:"
    cat "$STEPS" >&2
    ;;
  *) die "usage: test.sh" ;;
esac
