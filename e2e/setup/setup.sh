#!/usr/bin/env bash
# Installs everything that a fresh machine needs, in order, one line per stage. Idempotent: the second run takes a
# second or two.
#   setup.sh [all|build]     build: the needs of compiling and of the unit tests, without the cluster
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

HERE="$REPO/e2e/setup"
START=$(now_ms)

check_rust() { command -v cargo > /dev/null || die "Rust is needed (https://rustup.rs)"; }

# has_kind: true if an engine answers and the kind command exists; the cluster is then kind's and needs no parts of
# ours.
has_kind() { [ "${GRPO_CLUSTER:-}" != local ] && command -v kind > /dev/null && docker info > /dev/null 2>&1; }

what="${1:-all}"
check_rust
if [ "$what" = build ] || has_kind; then "$HERE/apt.sh" build; else "$HERE/apt.sh"; fi
"$HERE/python.sh"
[ "$what" = build ] || has_kind || "$HERE/kubernetes.sh"
say "$(printf '%6ss  set up' "$(seconds_since "$START")")"
