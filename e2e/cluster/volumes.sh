#!/usr/bin/env bash
# Empties the volumes whose claim is gone and offers them again. Runs inside the cluster: volumes.sh RUN KUBECONFIG
set -euo pipefail

RUN=$1
export KUBECONFIG=$2

# renew NAME: empties the folder and removes the claim from the volume.
renew() {
  local folder="$RUN/volumes/$1"
  find "$folder" -mindepth 1 -delete
  chown 0:0 "$folder"
  chmod 0777 "$folder"
  kubectl patch pv "$1" --type json -p '[{"op": "remove", "path": "/spec/claimRef"}]'
}

while :; do
  kubectl get pv --watch --no-headers -o custom-columns=N:.metadata.name,P:.status.phase 2> /dev/null |
    while read -r name phase; do
      if [ "$phase" = Released ]; then renew "$name" || true; fi
    done || true
  sleep 1
done
