#!/usr/bin/env bash
# Compiles the trainer's C++ with CUDA and NCCL, and links it as far as a machine without them can: every needed symbol must be in libtorch's
# libraries; their own dependencies (the driver, NCCL) are missing here. Runs nothing.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

[ -n "${GRPO_CUDA:-}" ] || die "GRPO_CUDA names no folder of headers: run make check-cuda"
# A target folder of its own: the flag would otherwise rebuild all shims, and again without it.
TARGET="$CARGO_TARGET_DIR/cuda"

compile() {
  rm -rf "$TARGET"/debug/build/grpo-native-*
  CARGO_TARGET_DIR="$TARGET" cargo build --manifest-path "$REPO/Cargo.toml" -p grpo-native
}

link() {
  local whole="$TARGET/native.so" wanted
  g++ -shared -o "$whole" -Wl,--whole-archive "$TARGET"/debug/build/grpo-native-*/out/libgrpo_native*.a -Wl,--no-whole-archive \
    -Wl,-z,defs -Wl,--allow-shlib-undefined -L"$LIBTORCH/lib" -ltorch_cuda -lc10_cuda -ltorch_cpu -lc10 -lgomp
  # Read all of nm's output first: in a pipe, `grep -q` exits at its first match, and nm fails to write the rest.
  wanted=$(nm -DC --undefined-only "$whole")
  grep -q 'c10d::ProcessGroupNCCL::ProcessGroupNCCL' <<< "$wanted" || die "there is no NCCL in it"
  grep -q 'c10::cuda::set_device' <<< "$wanted" || die "there is no CUDA in it"
  note "ProcessGroupNCCL and c10::cuda are found"
}

stage "C++ with CUDA" compile
stage "against libtorch_cuda" link
