#!/usr/bin/env bash
# The container engine's runc. Takes from each process what this machine's root itself lacks: on some virtual machines that is
# CAP_SYS_RESOURCE, which `--privileged` asks for. With it also goes the right to raise limits.
set -euo pipefail

RUNC="$(dirname "${BASH_SOURCE[0]}")/../engine/usr/sbin/runc"
SYS_RESOURCE=24
bounds=$(sed -n 's/^CapBnd:\t*//p' /proc/self/status)

without() {
  local file=$1 at=$2 new
  new=$(mktemp "$file.XXXXXX")
  jq -c "$at |= (del(.rlimits) | if .capabilities then .capabilities |= map_values(. - [\"CAP_SYS_RESOURCE\"]) else . end)" "$file" > "$new"
  cat "$new" > "$file"
  rm "$new"
}

if ! ((0x$bounds >> SYS_RESOURCE & 1)); then
  before=
  for argument in "$@"; do
    case "$before" in
      --bundle | -b) without "$argument/config.json" .process ;;
      --process | -p) without "$argument" . ;;
    esac
    before=$argument
  done
fi
exec "$RUNC" "$@"
