#!/usr/bin/env bash
# Emulators of two clouds' object stores in the cache, for `make check-stores`: Google's in Go (two minutes to build on two cores), Microsoft's
# own for Node (190 MB).
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

FAKE_GCS_VERSION=v1.56.1
# The last one for Node 20.
AZURITE_VERSION=3.35.0
export GOFLAGS=-buildvcs=false

fake_gcs() {
  if [ -x "$CACHE/bin/fake-gcs-server" ] && fresh fake-gcs-server "$FAKE_GCS_VERSION"; then note "as it was"; return; fi
  (cd "$CACHE" && CGO_ENABLED=0 GOBIN="$CACHE/bin" go install -trimpath -ldflags "-s -w" "github.com/fsouza/fake-gcs-server@$FAKE_GCS_VERSION")
  stamp fake-gcs-server "$FAKE_GCS_VERSION"
}

azurite() {
  if [ -x "$CACHE/azurite/node_modules/.bin/azurite-blob" ] && fresh azurite "$AZURITE_VERSION"; then note "as it was"; return; fi
  rm -rf "$CACHE/azurite"
  mkdir -p "$CACHE/azurite"
  (cd "$CACHE/azurite" && npm install --no-audit --no-fund --prefix "$CACHE/azurite" "azurite@$AZURITE_VERSION")
  stamp azurite "$AZURITE_VERSION"
}

command -v go > /dev/null || die "go is needed to build fake-gcs-server (https://go.dev/dl)"
command -v npm > /dev/null || die "npm is needed to install Azurite, with Node 20 or later (https://nodejs.org)"
stage "fake-gcs-server $FAKE_GCS_VERSION" fake_gcs
stage "Azurite $AZURITE_VERSION" azurite
