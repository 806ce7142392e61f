#!/usr/bin/env bash
# Builds the images, pushes them to REGISTRY/NAME:VERSION, and the chart, whose values name them, to REGISTRY/charts.
#   push.sh REGISTRY VERSION            GRPO_PLAIN_HTTP=1: a registry without TLS
#   push.sh REGISTRY VERSION images     only the images of this machine's processor, as VERSION-amd64 or VERSION-arm64 (then join.sh)
#   push.sh REGISTRY VERSION chart      only the chart
# Log in first: skopeo login (with Docker: docker login) and helm registry login.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/../setup/lib.sh"

REGISTRY=${1:-}
VERSION=${2:-}
WHAT=${3:-all}
[ -n "$REGISTRY" ] && [ -n "$VERSION" ] || die "usage: make push REGISTRY=registry.example.com/grpo VERSION=0.1.0"
[[ $REGISTRY != *://* && $REGISTRY != */ ]] || die "REGISTRY is a host and a path, without https:// and without / at its end: $REGISTRY"
[[ $VERSION =~ ^[0-9]+\.[0-9]+\.[0-9]+(-[0-9A-Za-z.-]+)?$ ]] || die "VERSION is a semantic version without v, such as 0.1.0: $VERSION"

# chart: a copy of the chart whose values name the images of this version.
chart() {
  local work
  work=$(mktemp -d)
  # shellcheck disable=SC2064
  trap "rm -rf '$work'" EXIT
  cp -r "$REPO/charts/grpo-operator" "$work/"
  sed -i "s|^  registry: .*|  registry: $REGISTRY|; s|^  tag: .*|  tag: \"$VERSION\"|" "$work/grpo-operator/values.yaml"
  grep -q "^  registry: $REGISTRY\$" "$work/grpo-operator/values.yaml" || die "the chart's values have no images.registry"
  helm package "$work/grpo-operator" --version "$VERSION" --app-version "$VERSION" --destination "$work"
  helm push "$work/grpo-operator-$VERSION.tgz" "oci://$REGISTRY/charts" ${GRPO_PLAIN_HTTP:+--plain-http}
  note "oci://$REGISTRY/charts/grpo-operator $VERSION"
}

# images TAG
images() {
  make --no-print-directory -C "$REPO" build
  [ -n "$(command -v kind)" ] && docker info > /dev/null 2>&1 || "$REPO/e2e/setup/apt.sh"
  "$REPO/e2e/cluster/images.sh" build
  "$REPO/e2e/cluster/images.sh" push "$REGISTRY" "$1"
}

push_chart() {
  command -v helm > /dev/null || "$REPO/e2e/setup/kubernetes.sh" control-plane
  stage "push chart" chart
  say "install it with: helm install grpo-operator oci://$REGISTRY/charts/grpo-operator --version $VERSION --namespace grpo-system --create-namespace"
}

case "$WHAT" in
  all) images "$VERSION"; push_chart ;;
  images) images "$VERSION-$(processor)" ;;
  chart) push_chart ;;
  *) die "usage: push.sh REGISTRY VERSION [images|chart]" ;;
esac
