#!/usr/bin/env bash
# Installs what kind needs on a machine that reaches package registries and no image registry, into $GRPO_CACHE/kind: kind,
# kubeadm and kube-router from Go modules, and the container engine of Debian's packages, unpacked and not installed, so that nothing
# else on this machine finds it.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/../setup/lib.sh"

KIND="$CACHE/kind"
KIND_VERSION=v0.33.0
LOCAL_PATH_VERSION=v0.0.30
KUBE_ROUTER_VERSION=$(sed -n 's/^ *image: .*kube-router://p' "$REPO/e2e/kind/policies.yaml")
ENGINE_PACKAGES=(docker.io containerd runc tini)
export GOFLAGS=-buildvcs=false

# install NAME ARGUMENTS...: `go install` into $KIND/bin.
install() {
  local name=$1 hash
  shift
  hash=$(hash_of "$REPO/e2e/setup/modules/kubernetes" "$*")
  if fresh "kind-$name" "$hash" && [ -x "$KIND/bin/$name" ]; then note "as it was"; return; fi
  (cd "$REPO/e2e/setup/modules/kubernetes" && CGO_ENABLED=0 GOBIN="$KIND/bin" go install -trimpath -ldflags "-s -w" "$@")
  stamp "kind-$name" "$hash"
}

engine() {
  local hash debs="$KIND/debs" package
  hash=$(hash_of "${ENGINE_PACKAGES[*]}")
  if fresh kind-engine "$hash" && [ -x "$KIND/engine/usr/sbin/dockerd" ]; then note "as it was"; return; fi
  rm -rf "$debs" "$KIND/engine"
  mkdir -p "$debs" "$KIND/engine"
  apt-get update -q
  (cd "$debs" && apt-get -q -o APT::Sandbox::User=root download "${ENGINE_PACKAGES[@]}")
  for package in "$debs"/*.deb; do dpkg-deb --extract "$package" "$KIND/engine"; done
  rm -rf "$debs"
  stamp kind-engine "$hash"
}

mkdir -p "$KIND/bin"
"$REPO/e2e/setup/kubernetes.sh"
stage kind install kind "sigs.k8s.io/kind@$KIND_VERSION"
stage kubeadm install kubeadm k8s.io/kubernetes/cmd/kubeadm
stage local-path-provisioner install local-path-provisioner "github.com/rancher/local-path-provisioner@$LOCAL_PATH_VERSION"
stage kube-router install kube-router "github.com/cloudnativelabs/kube-router/v2/cmd/kube-router@$KUBE_ROUTER_VERSION"
stage "container engine" engine
