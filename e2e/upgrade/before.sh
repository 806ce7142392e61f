#!/usr/bin/env bash
# The version that `make test-operations` upgrades from, and rolls back to.
#   before.sh build [COMMIT]   compiles it once, in a target folder of its own (40 minutes on two cores), keeps its images as
#                              grpo.dev/NAME:before, and its source with the chart in the cache as before/tree
#   before.sh import           these images -> the cluster
# COMMIT is that of the file `from`, unless it is given.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/../setup/lib.sh"

BEFORE="$CACHE/before"
IMAGES="$REPO/e2e/cluster/images.sh"
TAG=before

# compile TREE: its binaries as images, first under the name that each version gives them.
compile() {
  CARGO_TARGET_DIR="$BEFORE/target" make --no-print-directory -C "$1" build
  CARGO_TARGET_DIR="$BEFORE/target" "$1/e2e/cluster/images.sh" build
  "$IMAGES" keep "$TAG"
  rm -rf "$BEFORE/target"
}

build() {
  local commit tree
  commit=$(git -C "$REPO" rev-parse --verify --quiet "${1:-$(cat "$REPO/e2e/upgrade/from")}^{commit}") ||
    die "the commit to upgrade from is not in this clone (git fetch --unshallow)"
  tree="$BEFORE/$commit"
  if [ ! -d "$tree" ]; then
    rm -rf "$BEFORE"
    mkdir -p "$tree.new"
    git -C "$REPO" archive "$commit" | tar -x -C "$tree.new"
    mv "$tree.new" "$tree"
  fi
  ln -sfn "$tree" "$BEFORE/tree"
  if fresh images-before "$commit" && "$IMAGES" has "$TAG"; then say "the images of ${commit:0:12} are there"; return; fi
  stage "version ${commit:0:12}" compile "$tree"
  stamp images-before "$commit"
}

case "${1:-}" in
  build) build "${@:2}" ;;
  import) GRPO_IMAGE_TAG=$TAG "$IMAGES" import ;;
  *) die "usage: $0 build [COMMIT] | import" ;;
esac
