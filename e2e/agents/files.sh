#!/usr/bin/env bash
# Makes the files of the agents' images, as the recipes in docs/images do, in $GRPO_CACHE/agents/NAME/agent. Skips what has not
# changed. files.sh [NAME...]
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/../setup/lib.sh"
RECIPES="$REPO/docs/images"

make_files() {
  local name=$1 hash
  local recipe=("$RECIPES/$name/tree.sh") parts=("$RECIPES/$name")
  if [ ! -d "$RECIPES/$name" ]; then
    recipe=("$RECIPES/others/tree.sh" "$name")
    parts=("$RECIPES/others/tree.sh" "$RECIPES/others/"*"$name"*)
  fi
  hash=$(hash_of "$RECIPES/agent-runtime.sh" "${parts[@]}")
  if fresh "agent-$name" "$hash" && [ -d "$CACHE/agents/$name/agent" ]; then note "as it was"; return; fi
  "${recipe[@]}" "$CACHE/agents/$name"
  note "$(du -sh "$CACHE/agents/$name/agent" | cut -f1)"
  stamp "agent-$name" "$hash"
}

[ "$#" -gt 0 ] || set -- qwen-code mini-swe-agent
for name in "$@"; do stage "agent $name" make_files "$name"; done
