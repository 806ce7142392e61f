#!/usr/bin/env bash
# The cluster on machines with a container engine and kind: kind.sh up|down|status. Called by up.sh, down.sh and
# status.sh.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

exists() { kind get clusters 2> /dev/null | grep -qx grpo; }

up() {
  exists || kind create cluster --config "$CLUSTER_DIR/kind.yaml" --kubeconfig "$CLUSTER_KUBECONFIG" --wait 180s
  kind export kubeconfig --name grpo --kubeconfig "$CLUSTER_KUBECONFIG"
  await 60 kube get serviceaccount default
}

case "${1:-}" in
  up) stage "kind cluster" up ;;
  down) stage "kind cluster removed" kind delete cluster --name grpo --kubeconfig "$CLUSTER_KUBECONFIG" ;;
  status) exists && kube get nodes ;;
  *) die "usage: kind.sh up|down|status" ;;
esac
