#!/usr/bin/env bash
# Installs the headers that libtorch's CUDA headers include, in the cache: with them the trainer's CUDA variant compiles and links on a
# machine without a GPU (make check-cuda). It keeps only the headers of the wheels.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

INCLUDE="$CACHE/cuda-headers/include"
# The versions that torch 2.11.0 requires.
SMALL=("nvidia-cuda-runtime==13.0.*" "nvidia-cuda-crt==13.0.*" "nvidia-cuda-cccl==13.0.*")
# A gigabyte, most of it libraries: TRL's environment already has them if it is installed.
LARGE=("nvidia-nccl-cu13==2.28.9" "nvidia-cublas==13.*" "nvidia-cusparse==12.*" "nvidia-cusolver==12.*")

# headers_in FOLDER: true if a folder of include files has all needed headers.
headers_in() {
  local file
  for file in nccl.h cuda_runtime.h crt/host_defines.h cublas_v2.h cusparse.h cusolverDn.h; do
    [ -e "$1/$file" ] || return 1
  done
  [ -d "$1/cccl" ]
}

# take SITE: copies the headers of an environment's packages.
take() {
  local from
  for from in "$1"/nvidia/nccl/include "$1"/nvidia/cu13/include; do
    [ ! -d "$from" ] || cp -rL "$from/." "$INCLUDE.new/"
  done
}

# install WHEEL...: installs the headers of wheels, and nothing else.
install() {
  local site
  site=$(mktemp -d "$CACHE/wheels.XXXXXX")
  python3 -m pip install --quiet --no-deps --no-compile --python-version 3.11 --only-binary=:all: --target "$site" "$@"
  take "$site"
  rm -rf "$site"
}

headers() {
  local site
  if headers_in "$INCLUDE"; then note "as it was"; return; fi
  rm -rf "$INCLUDE.new"
  mkdir -p "$INCLUDE.new"
  for site in "$CACHE"/venv-trl/lib/python3*/site-packages; do take "$site"; done
  install "${SMALL[@]}"
  headers_in "$INCLUDE.new" || install "${LARGE[@]}"
  headers_in "$INCLUDE.new" || die "the wheels are there but their headers are not where they were expected"
  rm -rf "$INCLUDE"
  mv "$INCLUDE.new" "$INCLUDE"
  note "$(du -sh "$INCLUDE" | cut -f1)"
}

stage "CUDA headers" headers
