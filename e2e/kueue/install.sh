#!/usr/bin/env bash
# Builds Kueue from its Go module into the cache, with the CRDs that the module has, for `make test-kueue`.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/../setup/lib.sh"

TOOLS="$REPO/e2e/kueue/tools"
export GOFLAGS=-buildvcs=false

kueue() {
  local hash module
  hash=$(hash_of "$TOOLS")
  if [ -x "$CACHE/bin/kueue" ] && fresh kueue "$hash"; then note "as it was"; return; fi
  cd "$TOOLS"
  CGO_ENABLED=0 GOBIN="$CACHE/bin" go install -trimpath -ldflags "-s -w" tool
  module=$(go list -m -f '{{.Dir}}' sigs.k8s.io/kueue)
  rm -rf "$CACHE/kueue/crds"
  mkdir -p "$CACHE/kueue"
  cp -r "$module/config/components/crd/bases" "$CACHE/kueue/crds"
  chmod -R u+w "$CACHE/kueue/crds"
  stamp kueue "$hash"
}

command -v go > /dev/null || die "go is needed to build Kueue (https://go.dev/dl)"
stage "kueue" kueue
