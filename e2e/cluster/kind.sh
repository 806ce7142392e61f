#!/usr/bin/env bash
# The cluster on machines with a container engine and kind: kind.sh up|down|status. Called by up.sh, down.sh and
# status.sh. With GRPO_ENGINE_OFFLINE=1 and GRPO_KIND_IMAGE it needs no image of others (e2e/kind/test.sh).
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

exists() { kind get clusters 2> /dev/null | grep -qx grpo; }

# config: kind.yaml with the addresses of lib.sh.
config() {
  local kindnet=false
  [ -z "${GRPO_ENGINE_OFFLINE:-}" ] || kindnet=true
  sed -e "s|@POD_CIDR@|$POD_CIDR|; s|@SERVICE_CIDR@|$SERVICE_CIDR|; s|@NO_KINDNET@|$kindnet|" "$CLUSTER_DIR/kind.yaml"
  # Machines that lack kindnet's image may be machines with cgroups of version 1, or whose root may not lower a process's OOM
  # score.
  [ -z "${GRPO_ENGINE_OFFLINE:-}" ] || sed 's/^/  /' << 'END'
- |
  kind: KubeletConfiguration
  failCgroupV1: false
  oomScoreAdj: 0
END
}

# create: in a network in which this machine has the address that it has for the local cluster's pods.
create() {
  local file="$CACHE/kind.yaml"
  config > "$file"
  docker network inspect grpo > /dev/null 2>&1 || docker network create --subnet "${HOST_IP%.*}.0/24" --gateway "$HOST_IP" grpo
  export KIND_EXPERIMENTAL_DOCKER_NETWORK=grpo
  kind create cluster --config "$file" --kubeconfig "$CLUSTER_KUBECONFIG" ${GRPO_KIND_IMAGE:+--image "$GRPO_KIND_IMAGE"}
}

up() {
  exists || create
  kind export kubeconfig --name grpo --kubeconfig "$CLUSTER_KUBECONFIG"
  [ -z "${GRPO_ENGINE_OFFLINE:-}" ] || "$REPO/e2e/kind/network.sh"
  kube wait --for=condition=Ready nodes --all --timeout=180s
  await 60 kube get serviceaccount default
  note "$(kube get nodes -o name | wc -l) nodes"
}

case "${1:-}" in
  up) stage "kind cluster" up ;;
  down) stage "kind cluster removed" kind delete cluster --name grpo --kubeconfig "$CLUSTER_KUBECONFIG" ;;
  status) exists && kube get nodes ;;
  *) die "usage: kind.sh up|down|status" ;;
esac
