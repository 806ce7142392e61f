#!/usr/bin/env bash
# A virtual environment in the cache with libtorch: the torch wheel and the two CUDA libraries that it needs even on a
# CPU, all three without their dependencies; and, beside it, the packages of the official grader and a pytest.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

VENV="$CACHE/venv"
WHEELS=("torch==2.11.0" "nvidia-cuda-runtime==13.0.*" "nvidia-cuda-cupti==13.0.*")

# libtorch_there: true if the environment has the required version of the files for linking and running.
libtorch_there() {
  local site
  for site in "$VENV"/lib/python3*/site-packages; do
    [ -e "$site/torch/lib/libtorch_cpu.so" ] && [ -d "$site/torch-2.11.0.dist-info" ] || return 1
    compgen -G "$site/nvidia/cu13/lib/libcudart.so.13*" > /dev/null || return 1
    compgen -G "$site/nvidia/cu13/lib/libcupti.so.13*" > /dev/null || return 1
  done
}

libtorch() {
  if libtorch_there; then note "as it was"; return; fi
  [ -x "$VENV/bin/python" ] || python3 -m venv "$VENV"
  "$VENV/bin/python" -m pip install --quiet --no-deps "${WHEELS[@]}"
  libtorch_there || die "the wheels are installed but libtorch is not where it was expected in $VENV"
}

# pytest_environment: an environment of its own, because tests of tasks run in Python's isolated mode.
pytest_environment() {
  local list="$REPO/e2e/setup/pytest.txt" hash
  hash=$(hash_of "$list")
  if fresh pytest "$hash" && [ -x "$CACHE/pytest/bin/python3" ]; then note "as it was"; return; fi
  rm -rf "$CACHE/pytest"
  python3 -m venv "$CACHE/pytest"
  "$CACHE/pytest/bin/python3" -m pip install --quiet --no-deps -r "$list"
  stamp pytest "$hash"
}

stage "libtorch 2.11.0" libtorch
stage "official grader" grader_site
stage "pytest of the tasks" pytest_environment
