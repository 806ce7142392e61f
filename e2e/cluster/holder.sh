#!/usr/bin/env bash
# The first process of the cluster's namespaces: mounts folders for data that must not outlive the cluster, then only
# adopts orphans. Ending it ends everything inside.
set -euo pipefail

mount -t tmpfs -o mode=755 tmpfs /run
mkdir -p /run/cni /run/containerd
mount -t tmpfs -o mode=755 tmpfs /var/lib/cni
touch "$1"
trap '' HUP
while :; do
  sleep 3600 &
  wait || true
done
