#!/usr/bin/env bash
# Installs the Debian packages that the build and the cluster need; asks apt only for missing ones.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

BUILD_PACKAGES=(g++ git jq libgloo-dev libseccomp-dev pkg-config python3 python3-venv socat)
CLUSTER_PACKAGES=(buildah mmdebstrap containernetworking-plugins iptables nftables conntrack iproute2 util-linux)

PUSH_PACKAGES=(skopeo)

missing() {
  local p
  for p in "$@"; do
    [ "$(dpkg-query -W -f '${db:Status-Status}' "$p" 2> /dev/null)" = installed ] || printf '%s\n' "$p"
  done
}

install() {
  local want
  mapfile -t want < <(missing "$@")
  if [ "${#want[@]}" -eq 0 ]; then note "as it was"; return; fi
  local sudo=()
  [ "$(id -u)" -eq 0 ] || sudo=(sudo)
  "${sudo[@]}" apt-get update -q
  "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -qy --no-install-recommends "${want[@]}"
  note "installed ${want[*]}"
}

if ! command -v dpkg-query > /dev/null; then
  say "not a Debian system: please install the likes of ${BUILD_PACKAGES[*]} ${CLUSTER_PACKAGES[*]}"
  exit 0
fi
case "${1:-all}" in
  build) stage "debian packages" install "${BUILD_PACKAGES[@]}" ;;
  all) stage "debian packages" install "${BUILD_PACKAGES[@]}" "${CLUSTER_PACKAGES[@]}" ;;
  push) stage "debian packages" install "${PUSH_PACKAGES[@]}" ;;
  *) die "usage: apt.sh [build|all|push]" ;;
esac
