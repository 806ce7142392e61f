#!/usr/bin/env bash
# Installs other projects' clients, each into a folder of its own in $GRPO_CACHE/clients: `install.sh NAME...`.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/../setup/lib.sh"

# client NAME REQUIREMENTS: a virtual environment with these packages.
client() {
  local venv="$CACHE/clients/$1"
  if [ "$(cat "$venv/installed" 2> /dev/null)" = "$2" ]; then note "as it was"; return; fi
  rm -rf "$venv"
  python3 -m venv "$venv"
  "$venv/bin/python" -m pip install --quiet $2
  echo "$2" > "$venv/installed"
}

for name in "$@"; do
  case "$name" in
    # It brings OpenAI's library.
    mini-swe-agent) stage "mini-swe-agent 2.4.6" client "$name" mini-swe-agent==2.4.6 ;;
    # Its client imports aiohttp without declaring it.
    swe-rex) stage "swe-rex 1.4.0" client "$name" "swe-rex==1.4.0 aiohttp==3.14.5" ;;
    schemathesis) stage "schemathesis 4.32.5" client "$name" schemathesis==4.32.5 ;;
    *) die "no such client: $name" ;;
  esac
done
