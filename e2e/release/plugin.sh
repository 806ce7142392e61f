#!/usr/bin/env bash
# Makes the kubectl plugin's files of a release.
#   plugin.sh archive FOLDER                       an archive for this machine's processor, and its checksum
#   plugin.sh krew VERSION REPOSITORY-ADDRESS FOLDER   krew's manifest of all archives in FOLDER
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/../setup/lib.sh"

# Without glibc's shared objects, so that it runs on any Linux.
build() {
  RUSTFLAGS='-C target-feature=+crt-static' cargo build --manifest-path "$REPO/Cargo.toml" -p kubectl-grpo --target "$(uname -m)-unknown-linux-gnu"
}

archive() {
  local folder=$1 archive
  archive="kubectl-grpo-linux-$(processor).tar.gz"
  mkdir -p "$folder"
  tar -czf "$folder/$archive" -C "$REPO" LICENSE -C "$CARGO_TARGET_DIR/$(uname -m)-unknown-linux-gnu/debug" kubectl-grpo
  (cd "$folder" && sha256sum "$archive" > "$archive.sha256")
  note "$(du -h "$folder/$archive" | cut -f1)"
}

krew() {
  local version=$1 address=$2 folder=$3 file processor
  sed -e "s|@VERSION@|$version|; s|@ADDRESS@|$address|" "$REPO/e2e/release/krew.yaml" > "$folder/grpo.yaml"
  for file in "$folder"/kubectl-grpo-linux-*.tar.gz; do
    processor=$(basename "$file" .tar.gz)
    cat << END
  - selector: {matchLabels: {os: linux, arch: ${processor##*-}}}
    uri: $address/releases/download/v$version/$(basename "$file")
    sha256: $(cut -d' ' -f1 "$file.sha256")
    bin: kubectl-grpo
    files:
    - {from: kubectl-grpo, to: .}
    - {from: LICENSE, to: .}
END
  done >> "$folder/grpo.yaml"
}

case "${1:-} $#" in
  "archive 2")
    . "$REPO/e2e/setup/env.sh"
    stage "plugin" build
    stage "archive" archive "$2"
    ;;
  "krew 4") stage "krew manifest" krew "$2" "$3" "$4" ;;
  *) die "usage: plugin.sh archive dist; plugin.sh krew 0.1.0 https://example.com/team/grpo-operator dist" ;;
esac
