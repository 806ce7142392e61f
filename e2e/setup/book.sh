#!/usr/bin/env bash
# Installs one version of mdBook in the cache, without its server, watcher and search. Only `make book` needs it; the tests read the book's
# sources themselves.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

MDBOOK=0.5.4

mdbook_there() { [ "$("$CACHE/bin/mdbook" --version 2> /dev/null)" = "mdbook v$MDBOOK" ]; }

mdbook() {
  if mdbook_there; then note "as it was"; return; fi
  CARGO_TARGET_DIR="$CACHE/build/mdbook" cargo install mdbook --version "$MDBOOK" --locked --no-default-features --root "$CACHE" --no-track
  rm -rf "$CACHE/build/mdbook"
}

stage "mdBook $MDBOOK" mdbook
