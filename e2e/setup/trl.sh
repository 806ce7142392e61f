#!/usr/bin/env bash
# The peers of `make bench-trainer`, TRL and plain PyTorch, in a virtual environment of their own in the cache (6 GB, most of it PyTorch's
# CUDA packages, without which its Python module does not load). PyTorch has the version whose libtorch this project links, so that all run
# the same kernels.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

VENV="$CACHE/venv-trl"

trl() {
  if [ -x "$VENV/bin/python" ] && "$VENV/bin/python" -c 'from trl import GRPOTrainer' 2> /dev/null; then
    note "as it was"
    return
  fi
  [ -x "$VENV/bin/python" ] || python3 -m venv "$VENV"
  "$VENV/bin/python" -m pip install --quiet "torch==2.11.0" "trl==1.16.0" "transformers==5.23.0"
  "$VENV/bin/python" -c 'from trl import GRPOTrainer'
}

stage "TRL 1.16.0" trl
