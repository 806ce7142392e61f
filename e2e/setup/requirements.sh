#!/usr/bin/env bash
# Lists everything that this machine lacks for the demo and its cluster, with the next step, before anything is compiled.
# Skips what the set-up installs by itself.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/../cluster/lib.sh"

missing=()
lacks() { missing+=("$1"); }

# wants PROGRAM WHY
wants() { command -v "$1" > /dev/null || lacks "$1: $2"; }

# The images are Debian 12, and programs are copied into them: a program linked with a newer C library does not start there.
OLDEST_ENOUGH=2.36
newer_libc() {
  local here
  here=$(ldd --version 2> /dev/null | awk 'NR == 1 { print $NF }')
  [ "$(printf '%s\n%s\n' "$OLDEST_ENOUGH" "$here" | sort -V | tail -n 1)" != "$OLDEST_ENOUGH" ]
}

[ "$(uname -sm)" = "Linux x86_64" ] || lacks "this is $(uname -sm); the demo needs Linux on x86_64"
wants cargo "install Rust from https://rustup.rs"
[ "$(id -u)" -eq 0 ] || lacks "root: images are built in chroots; run it as root, or in a container or virtual machine"
! newer_libc || lacks "a C library of at most version $OLDEST_ENOUGH (Debian 12, Ubuntu 22.04): this machine's is newer"
if uses_kind; then
  wants kubectl "https://kubernetes.io/docs/tasks/tools"
  wants helm "https://helm.sh/docs/intro/install"
  wants mmdebstrap "install it by the system's packages (Debian, Ubuntu)"
else
  wants go "install Go 1.26 or newer, which builds Kubernetes; or install Docker and kind, then kind makes the cluster"
  wants apt-get "the local cluster needs Debian 12; elsewhere install Docker and kind"
fi
[ ${#missing[@]} -eq 0 ] || die "this machine lacks:$(printf '\n  %s' "${missing[@]}")"
