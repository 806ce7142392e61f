#!/usr/bin/env bash
# qwen-code and mini-swe-agent, as their publishers ship them, from the files of their images and with the command lines of
# the presets: in a root without a C library, against a simulated endpoint. Needs root, and the network for packages only.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/../setup/lib.sh"
cd "$REPO"
. e2e/setup/env.sh

# static_programs: a shell without a C library, for roots without one.
static_programs() {
  local folder="$CACHE/agents/static" work
  if [ -x "$folder/bash" ] && [ -x "$folder/busybox" ]; then note "as they were"; return; fi
  work=$(mktemp -d)
  (cd "$work" && apt-get download -qq -o APT::Sandbox::User=root bash-static busybox-static && for package in *.deb; do dpkg-deb -x "$package" .; done)
  mkdir -p "$folder"
  cp "$work/bin/bash-static" "$folder/bash"
  cp "$work/bin/busybox" "$folder/busybox"
  rm -rf "$work"
}

e2e/agents/files.sh
stage "static shell" static_programs
export GRPO_AGENT_FILES="$CACHE/agents"
cargo test -p grpo-driver -p grpo-features --test driver agents:: -- --ignored --test-threads=2 --nocapture
