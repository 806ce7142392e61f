#!/usr/bin/env bash
# Joins the images that push.sh made on machines with different processors: REGISTRY/NAME:VERSION-amd64 and
# REGISTRY/NAME:VERSION-arm64 become REGISTRY/NAME:VERSION, of which each node pulls its own.
#   join.sh REGISTRY VERSION PROCESSOR...      GRPO_PLAIN_HTTP=1: a registry without TLS
#   GRPO_NAMES: the images, where they are not all of `images.sh names`
# Log in first: buildah login.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/../setup/lib.sh"

[ $# -ge 3 ] || die "usage: join.sh registry.example.com/grpo 0.1.0 amd64 arm64"
REGISTRY=$1
VERSION=$2
shift 2
TLS=true
[ "${GRPO_PLAIN_HTTP:-}" != 1 ] || TLS=false

# The lists are small and made anew each time, in a folder of their own.
WORK=$(mktemp -d)
trap 'rm -rf "$WORK"' EXIT
list() { STORAGE_DRIVER=vfs buildah --root "$WORK/root" --runroot "$WORK/run" manifest "$@"; }

join() {
  local image="$REGISTRY/$1" processor
  shift
  list create "$image:$VERSION"
  for processor in "$@"; do list add --tls-verify="$TLS" --arch "$processor" "$image:$VERSION" "docker://$image:$VERSION-$processor"; done
  list push --all --tls-verify="$TLS" "$image:$VERSION" "docker://$image:$VERSION"
  note "$image:$VERSION for $*"
}

for name in ${GRPO_NAMES:-$("$REPO/e2e/cluster/images.sh" names)}; do stage "join $name" join "$name" "$@"; done
