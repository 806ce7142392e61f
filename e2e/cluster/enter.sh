#!/usr/bin/env bash
# Runs a command in the cluster's namespaces (its network, its processes): enter.sh nft list ruleset
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
inside "$@"
