#!/usr/bin/env bash
# The trainer's tests and steps on a GPU, in two halves, because who builds seldom has one:
#   gpu.sh build FOLDER   on any machine: the test programs, built for CUDA, into FOLDER
#   gpu.sh run FOLDER     on a machine with an H100 or H200, a driver from 580 on and PyTorch 2.11.0: the tests
#   gpu.sh bench FOLDER   on the same: seconds of steps of published geometries
# LIBTORCH_SITE is the folder site-packages that has PyTorch with its CUDA libraries; by default that of python3.
set -euo pipefail

usage() {
  sed -n '2,6s/^# //p' "${BASH_SOURCE[0]}" >&2
  exit 2
}

# program NAME: the newest program with that name in cargo's messages on standard input.
program() {
  python3 -c 'import json, sys
found = [m["executable"] for m in map(json.loads, sys.stdin) if m.get("executable") and m["target"]["name"] == sys.argv[1]]
print(found[-1])' "$1"
}

build() {
  . "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
  [ -n "${GRPO_CUDA:-}" ] || die "GRPO_CUDA names no folder of headers: run make gpu-programs"
  local test into=$1 target="$CARGO_TARGET_DIR/cuda" messages
  local torch=(-p grpo-features -p grpo-native -p grpo-model -p grpo-trainer -p grpo-bench-trainer --features grpo-model/torch)
  mkdir -p "$into" "$target/bin"
  # libtorch's CUDA libraries need others (cuBLAS, NCCL) that exist only on the machine that runs the programs. A flag of
  # rustc would recompile every dependency.
  printf '#!/bin/sh\nexec %s "$@" -Wl,--allow-shlib-undefined\n' "$(command -v cc)" > "$target/bin/cc"
  chmod +x "$target/bin/cc"
  messages=$(PATH="$target/bin:$PATH" CARGO_TARGET_DIR="$target" cargo test --manifest-path "$REPO/Cargo.toml" "${torch[@]}" \
    --no-run --message-format json --test native --test trainer --test processes)
  for test in native trainer processes; do
    cp "$(program "$test" <<< "$messages")" "$into/$test"
  done
  PATH="$target/bin:$PATH" CARGO_TARGET_DIR="$target" cargo build --manifest-path "$REPO/Cargo.toml" "${torch[@]}" \
    --bin grpo-bench-trainer --bin grpo-trainer
  cp "$target/debug/grpo-bench-trainer" "$target/debug/grpo-trainer" "$into/"
  say "$(du -sh "$into" | cut -f1) in $into"
}

# Where the programs find libtorch and NVIDIA's libraries.
libraries() {
  local site found
  site=${LIBTORCH_SITE:-$(python3 -c 'import os, torch; print(os.path.dirname(os.path.dirname(torch.__file__)))')}
  LD_LIBRARY_PATH="$site/torch/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
  for found in "$site"/nvidia/*/lib; do LD_LIBRARY_PATH="$found:$LD_LIBRARY_PATH"; done
  export LD_LIBRARY_PATH
}

run() {
  local status=0
  libraries
  # cuBLAS repeats its bits only with this setting, and reads it when CUDA starts.
  export GRPO_TEST_DEVICE=${GRPO_TEST_DEVICE:-cuda:0} CUBLAS_WORKSPACE_CONFIG=:4096:8
  GRPO_TRAINER=$(cd "$1" && pwd)/grpo-trainer
  export GRPO_TRAINER
  # One at a time: some set how the whole process computes.
  "$1/native" --include-ignored --test-threads=1 --skip exchange || status=$?
  "$1/trainer" --ignored --nocapture --test-threads=1 gpu:: || status=$?
  # The CPU tests, in fp32 and bf16 on the GPU. Several ranks need several GPUs, and the skipped test reads a model of the
  # source tree, on the CPU.
  "$1/trainer" --test-threads=1 arithmetic:: options:: precision:: steps:: supervised:: --skip a_mixtures_gradients \
    --skip two_ranks --skip what_is_observed_passes || status=$?
  GRPO_KILLS=5 "$1/processes" kills:: || status=$?
  return "$status"
}

bench() {
  libraries
  "$1/grpo-bench-trainer" gpu
  "$1/grpo-bench-trainer" gpu --deterministic
  for keep in attention inputs offloaded; do
    "$1/grpo-bench-trainer" gpu --keep "$keep"
  done
  "$1/grpo-bench-trainer" gpu --offload optimizer,parameters
  "$1/grpo-bench-trainer" gpu --launches
  "$1/grpo-bench-trainer" gpu --model 4b-lora
  "$1/grpo-bench-trainer" gpu --model 8b-lora
  "$1/grpo-bench-trainer" gpu --model 30b-a3b-lora --layers 12
  "$1/grpo-bench-trainer" gpu --model 30b-a3b-lora --layers 12 --launches
}

[ $# -eq 2 ] || usage
case $1 in
  build) build "$2" ;;
  run) run "$2" ;;
  bench) bench "$2" ;;
  *) usage ;;
esac
