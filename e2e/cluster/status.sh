#!/usr/bin/env bash
# Reports whether the cluster is up and which of its parts serve; fails if one does not.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
. "$CLUSTER_DIR/parts.sh"

if uses_kind; then exec "$CLUSTER_DIR/kind.sh" status; fi
holder > /dev/null || { say "the cluster is down"; exit 1; }
rc=0
for part in "${PARTS[@]}"; do
  if "serves_$part" > /dev/null 2>&1; then state=serves; else state="does not serve"; rc=1; fi
  printf '%-20s %s\n' "$part" "$state"
done
kube get nodes
exit "$rc"
