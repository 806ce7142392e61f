#!/usr/bin/env bash
# timed.sh NAME COMMAND...   runs the command, ends with its exit status, and adds its seconds to the table that
# .ci/run prints. Without .ci/run it only runs the command.
set -uo pipefail
name=$1
shift
status=0
"$@" || status=$?
if [ -n "${GRPO_STAGES:-}" ]; then
  [ "$status" -eq 0 ] || name+=" (exit status $status)"
  printf '%8d  %s\n' "$SECONDS" "$name" >> "$GRPO_STAGES"
fi
exit "$status"
