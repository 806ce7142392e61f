#!/usr/bin/env bash
# MLflow's server, and a wandb that still has its reader of offline files in Python, each in a virtual environment of its own in the
# cache (1.2 GB).
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/../setup/lib.sh"

# venv NAME PACKAGE MODULE
venv() {
  local at="$CACHE/venv-$1"
  if [ -x "$at/bin/python" ] && fresh "venv-$1" "$2"; then note "as it was"; return; fi
  [ -x "$at/bin/python" ] || python3 -m venv "$at"
  "$at/bin/python" -m pip install --quiet "$2"
  "$at/bin/python" -c "import $3"
  stamp "venv-$1" "$2"
  note "$(du -sh "$at" | cut -f1)"
}

stage "MLflow 3.17.2" venv mlflow mlflow==3.17.2 mlflow.server
stage "wandb 0.19.11" venv wandb wandb==0.19.11 wandb.sdk.internal.datastore
