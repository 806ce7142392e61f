#!/usr/bin/env bash
# A release as a user meets it: images and chart are pushed to a registry on this machine (distribution 3.1.2), the
# operator is removed from the local cluster with its CRDs, installed again from the registry alone, and a run with
# these images succeeds and is verified. Before that two releases of the chart in two namespaces work at the same time:
# afterwards the kubelet pulls images that it has under another name from the registry again, to check credentials.
# Leaves the operator of the source tree behind, as demo/prepare.sh does.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/../cluster/lib.sh"
. "$(dirname "${BASH_SOURCE[0]}")/registry.sh"

VERSION=0.0.0-test
SYSTEM=grpo-system

# install: in an empty folder, with the commands that push.sh prints.
install() {
  cd "$(mktemp -d)"
  helm install grpo-operator "oci://$REGISTRY/grpo/charts/grpo-operator" --version "$VERSION" --plain-http \
    --namespace "$SYSTEM" --create-namespace --wait --timeout 180s
  kube --namespace "$SYSTEM" get pods -o jsonpath='{.items[*].spec.containers[*].image}' | grep -q "^$REGISTRY/grpo/operator:$VERSION\$"
  note "$(kube --namespace "$SYSTEM" get pods -o jsonpath='{.items[*].spec.containers[*].image}')"
}

# back: restores the operator of the source tree for later tests, also after a failure, in a cluster whose kubelet has
# pulled no image.
back() {
  stop
  "$REPO/e2e/cluster/down.sh"
  "$REPO/demo/prepare.sh"
}

test_of() {
  cargo test --manifest-path "$REPO/Cargo.toml" --workspace --exclude grpo-native --exclude grpo-trainer \
    --exclude grpo-bench-trainer --test e2e -- --ignored --nocapture "release::$1"
}

! uses_kind || die "this test needs the local cluster, whose nodes reach a registry on this machine: set GRPO_CLUSTER=local"
"$REPO/demo/prepare.sh"
trap back EXIT
. "$REPO/e2e/setup/env.sh"
export KUBECONFIG="$CLUSTER_KUBECONFIG"
stage "operator removed" helm uninstall grpo-operator --namespace "$SYSTEM" --wait
test_of two_releases
"$REPO/demo/prepare.sh"
stage "registry" registry_program
serve
# As the release workflow does, with one processor instead of two.
export GRPO_PLAIN_HTTP=1
"$REPO/e2e/release/push.sh" "$REGISTRY/grpo" "$VERSION" images
"$REPO/e2e/release/join.sh" "$REGISTRY/grpo" "$VERSION" "$(processor)"
"$REPO/e2e/release/push.sh" "$REGISTRY/grpo" "$VERSION" chart
stage "operator removed" remove_operator
stage "operator from the registry" install
GRPO_RELEASE_IMAGES="$REGISTRY/grpo/" test_of a_run_with
