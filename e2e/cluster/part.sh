#!/usr/bin/env bash
# Stops or starts one part of the running local cluster, for tests of outages.
#   part.sh stop|kill|start|restart NAME      NAME: etcd containerd apiserver controller-manager scheduler kubelet proxy coredns volumes
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
. "$CLUSTER_DIR/pki.sh"
. "$CLUSTER_DIR/parts.sh"

action=${1:?action} name=${2:?part}
declare -F "start_$name" > /dev/null || die "no such part: $name"
case "$action" in
  stop) stop_part "$name" ;;
  kill) stop_part "$name" KILL ;;
  start) start_part "$name"; await 60 "serves_$name" ;;
  restart) stop_part "$name"; start_part "$name"; await 60 "serves_$name" ;;
  *) die "usage: part.sh stop|kill|start|restart NAME" ;;
esac
