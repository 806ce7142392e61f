#!/usr/bin/env bash
# Makes a node offer graphics cards, so that pods that request some are scheduled; no device comes with it.
#   gpu.sh [COUNT] [NODE]
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

count=${1:-8}
node=${2:-$(kube get nodes -o jsonpath='{.items[-1:].metadata.name}')}
kube patch node "$node" --subresource=status --type merge \
  -p "{\"status\": {\"capacity\": {\"nvidia.com/gpu\": \"$count\"}, \"allocatable\": {\"nvidia.com/gpu\": \"$count\"}}}"
