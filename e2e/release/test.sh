#!/usr/bin/env bash
# A release as a user meets it: images and chart are pushed to a registry on this machine (distribution 3.1.2), the
# operator is removed from the local cluster with its CRDs, installed again from the registry alone, and a run with
# these images succeeds and is verified. Leaves the operator of the source tree behind, as demo/prepare.sh does.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/../cluster/lib.sh"

DISTRIBUTION=v3.1.2
REGISTRY="$HOST_IP:5000"
VERSION=0.0.0-test
SYSTEM=grpo-system

# registry_program: built from Go's module proxy, once.
registry_program() {
  if fresh registry "$DISTRIBUTION" && [ -x "$CACHE/bin/registry" ]; then note "as it was"; return; fi
  GOBIN="$CACHE/bin" CGO_ENABLED=0 go install "github.com/distribution/distribution/v3/cmd/registry@$DISTRIBUTION"
  stamp registry "$DISTRIBUTION"
}

# serve: the registry, empty, until this script ends.
serve() {
  rm -rf "$RUN/registry"
  mkdir -p "$RUN/registry" "$RUN/certs.d/$REGISTRY"
  printf 'version: 0.1\nstorage: {filesystem: {rootdirectory: %s}}\nhttp: {addr: "%s"}\n' "$RUN/registry" "$REGISTRY" > "$RUN/registry.yaml"
  printf 'server = "http://%s"\n[host."http://%s"]\n  capabilities = ["pull", "resolve"]\n' "$REGISTRY" "$REGISTRY" > "$RUN/certs.d/$REGISTRY/hosts.toml"
  "$CACHE/bin/registry" serve "$RUN/registry.yaml" > "$RUN/logs/registry.log" 2>&1 &
  SERVER=$!
  await 20 curl --silent --fail "http://$REGISTRY/v2/"
}

# remove: the operator and its CRDs, so that nothing of the source tree is left in the cluster.
remove() {
  helm uninstall grpo-operator --namespace "$SYSTEM" --wait
  kube delete --wait -f "$REPO/charts/grpo-operator/crds"
  kube annotate namespace "$SYSTEM" grpo.dev/operator-image-
  kube --namespace "$SYSTEM" wait --for=delete pod --all --timeout=120s
}

# install: in an empty folder, by the words that push.sh says.
install() {
  cd "$(mktemp -d)"
  helm install grpo-operator "oci://$REGISTRY/grpo/charts/grpo-operator" --version "$VERSION" --plain-http \
    --namespace "$SYSTEM" --create-namespace --wait --timeout 180s
  kube --namespace "$SYSTEM" get pods -o jsonpath='{.items[*].spec.containers[*].image}' | grep -q "^$REGISTRY/grpo/operator:$VERSION\$"
  note "$(kube --namespace "$SYSTEM" get pods -o jsonpath='{.items[*].spec.containers[*].image}')"
}

# back: restores the operator of the source tree for later tests, also after a failure.
back() {
  [ -z "${SERVER:-}" ] || kill "$SERVER" 2> /dev/null || true
  rm -rf "$RUN/registry"
  "$REPO/demo/prepare.sh"
}

! uses_kind || die "this test needs the local cluster, whose nodes reach a registry on this machine: set GRPO_CLUSTER=local"
"$REPO/demo/prepare.sh"
grep -q certs.d "$RUN/containerd.toml" || die "the cluster was started by an older version, which knows no registry on this machine: make down"
trap back EXIT
. "$REPO/e2e/setup/env.sh"
export KUBECONFIG="$CLUSTER_KUBECONFIG"
stage "registry" registry_program
serve
GRPO_PLAIN_HTTP=1 "$REPO/e2e/release/push.sh" "$REGISTRY/grpo" "$VERSION"
stage "operator removed" remove
stage "operator from the registry" install
GRPO_RELEASE_IMAGES="$REGISTRY/grpo/" cargo test --manifest-path "$REPO/Cargo.toml" --workspace --exclude grpo-native \
  --exclude grpo-trainer --exclude grpo-bench-trainer --test e2e -- --ignored --nocapture release::
