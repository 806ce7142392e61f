#!/usr/bin/env bash
# Builds the parts of a Kubernetes cluster from Go modules into the cache, each pinned by the go.mod and go.sum beside
# it under modules/ (or by its version, for commands that install without them).
#   kubernetes.sh [all|control-plane]     control-plane: the API's servers, KWOK in place of nodes, a server of S3
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

MODULES="$REPO/e2e/setup/modules"
KUBERNETES_VERSION=v1.36.3
RUNC_VERSION=v1.5.2
COREDNS_VERSION=v1.14.7
HELM_VERSION=v4.3.1
KWOK_VERSION=v0.7.0
VERSITYGW_VERSION=v1.8.0
KUBERNETES=(kube-apiserver kube-controller-manager kube-proxy kube-scheduler kubectl kubelet)
export GOFLAGS=-buildvcs=false

# build NAME CGO ARGUMENTS...: `go install` of the tools of modules/NAME, or of the module@version given last.
build() {
  local name=$1 cgo=$2 hash from="$MODULES/$1"
  shift 2
  hash=$(hash_of "$from" "$*")
  if fresh "go-$name" "$hash"; then note "as it was"; return; fi
  [ -d "$from" ] || from=$CACHE
  (cd "$from" && CGO_ENABLED=$cgo GOBIN="$CACHE/bin" go install -trimpath "$@")
  stamp "go-$name" "$hash"
}

kubernetes_flags() {
  local p=k8s.io/component-base/version c=k8s.io/client-go/pkg/version x
  printf -- '-s -w'
  for x in $p $c; do
    printf -- ' -X %s.gitVersion=%s -X %s.gitMajor=1 -X %s.gitMinor=36' "$x" "$KUBERNETES_VERSION" "$x" "$x"
  done
}

build_etcd() {
  build etcd 0 -ldflags "-s -w" tool
  [ ! -e "$CACHE/bin/server" ] || mv "$CACHE/bin/server" "$CACHE/bin/etcd"
}

build_containerd() {
  build containerd 0 -tags "no_btrfs no_devmapper no_zfs" \
    -ldflags "-s -w -X github.com/containerd/containerd/v2/version.Version=v2.4.2" tool
}

# The parts of a control plane without nodes.
control_plane() {
  stage etcd build_etcd
  # Not `tool`: e2e/kind/parts.sh builds kubeadm, which only nodes of kind need.
  stage kubernetes build kubernetes 0 -ldflags "$(kubernetes_flags)" "${KUBERNETES[@]/#/k8s.io/kubernetes/cmd/}"
  stage helm build helm 0 -ldflags "-s -w" "helm.sh/helm/v4/cmd/helm@$HELM_VERSION"
}

# A cluster with nodes of its own does not need it.
in_place_of_nodes() { stage kwok build kwok 0 -ldflags "-s -w" "sigs.k8s.io/kwok/cmd/kwok@$KWOK_VERSION"; }

# A server of S3 for tests of stores.
s3_server() {
  stage versitygw build versitygw 0 -ldflags "-s -w" "github.com/versity/versitygw/cmd/versitygw@$VERSITYGW_VERSION"
}

# Additional parts for nodes.
nodes() {
  stage runc build runc 1 -tags seccomp -ldflags "-s -w" "github.com/opencontainers/runc@$RUNC_VERSION"
  stage containerd build_containerd
  stage coredns build coredns 0 -ldflags "-s -w" "github.com/coredns/coredns@$COREDNS_VERSION"
}

main() {
  command -v go > /dev/null || die "go is needed to build Kubernetes (https://go.dev/dl)"
  control_plane
  if [ "${1:-all}" = control-plane ]; then in_place_of_nodes; s3_server; else nodes; fi
}

main "$@"
