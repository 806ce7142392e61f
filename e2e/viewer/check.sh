#!/usr/bin/env bash
# Builds the viewer's page again and compares it with the one in the repository; checks its types; opens every view of a
# made store in Chromium, from the server and as a bundle. Needs Node.js 20 or later; installs Debian's chromium.
#   check.sh VIEWER BENCH [PICTURES]     the programs kubectl-grpo and grpo-bench-viewer; a folder for pictures
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/../setup/lib.sh"

VIEWER=$(realpath "$1")
BENCH=$(realpath "$2")
export PICTURES=${3:+$(realpath -m "$3")}
HERE="$REPO/e2e/viewer"

command -v npm > /dev/null || die "npm is needed, with Node.js 20 or later (https://nodejs.org)"
if [ -z "${CHROMIUM:-}" ] && ! command -v chromium > /dev/null; then
  sudo=
  [ "$(id -u)" -eq 0 ] || sudo=sudo
  stage "chromium" $sudo sh -c 'apt-get update -q && DEBIAN_FRONTEND=noninteractive apt-get install -qy --no-install-recommends chromium'
fi
cd "$REPO/operator/viewer"
stage "packages of the page" npm ci --no-audit --no-fund --ignore-scripts
stage "types of the page" npm run --silent check
before=$(hash_of dist)
stage "page" npm run --silent build
[ "$before" = "$(hash_of dist)" ] || die "operator/viewer/dist was not built from these sources: run make viewer and commit it"

work=$(mktemp -d)
pid=
cleanup() {
  [ -z "$pid" ] || kill "$pid" 2> /dev/null || true
  rm -rf "$work"
}
trap cleanup EXIT
"$BENCH" store "$work/store" --iterations 60 --groups 6 --samples 4 --hostile
mkfifo "$work/address"
"$VIEWER" ui --from "$work/store" > "$work/address" &
pid=$!
read -r address < "$work/address"
say "the server:"
node "$HERE/check.mjs" "$address"
"$VIEWER" ui --from "$work/store" --bundle "$work/bundle"
say "the bundle:"
PICTURES= node "$HERE/check.mjs" "file://$work/bundle/index.html"
