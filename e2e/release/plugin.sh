#!/usr/bin/env bash
# Makes the kubectl plugin's files of a release: an archive for this machine's processor, its checksum, and krew's
# manifest.
#   plugin.sh VERSION REPOSITORY-ADDRESS FOLDER
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/../setup/lib.sh"

[ $# -eq 3 ] || die "usage: plugin.sh 0.1.0 https://example.com/team/grpo-operator dist"
VERSION=$1
ADDRESS=$2
FOLDER=$3

case "$(uname -m)" in
  x86_64) ARCH=amd64 ;;
  aarch64) ARCH=arm64 ;;
  *) die "no release is made for $(uname -m)" ;;
esac
ARCHIVE="kubectl-grpo-linux-$ARCH.tar.gz"

# Without glibc's shared objects, so that it runs on any Linux.
build() {
  RUSTFLAGS='-C target-feature=+crt-static' cargo build --manifest-path "$REPO/Cargo.toml" -p kubectl-grpo --target "$(uname -m)-unknown-linux-gnu"
}

archive() {
  mkdir -p "$FOLDER"
  tar -czf "$FOLDER/$ARCHIVE" -C "$REPO" LICENSE -C "$CARGO_TARGET_DIR/$(uname -m)-unknown-linux-gnu/debug" kubectl-grpo
  (cd "$FOLDER" && sha256sum "$ARCHIVE" > "$ARCHIVE.sha256")
  note "$(du -h "$FOLDER/$ARCHIVE" | cut -f1)"
}

krew() {
  sed -e "s|@VERSION@|$VERSION|; s|@ADDRESS@|$ADDRESS|; s|@ARCH@|$ARCH|; s|@ARCHIVE@|$ARCHIVE|" \
    -e "s|@SHA256@|$(cut -d' ' -f1 "$FOLDER/$ARCHIVE.sha256")|" "$REPO/e2e/release/krew.yaml" > "$FOLDER/grpo.yaml"
}

. "$REPO/e2e/setup/env.sh"
stage "plugin" build
stage "archive" archive
stage "krew manifest" krew
