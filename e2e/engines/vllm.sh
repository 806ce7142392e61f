#!/bin/bash
# vLLM and SGLang as they are, against what this repository says to them. Their own parsers read the command lines of all golden files. Then a
# real vLLM (its CPU build) serves a tiny random Qwen3 with the very command line of a golden file, behind an engine agent: once with adapters,
# once with full weights. Installs into $GRPO_CACHE, 5 GB the first time, and needs network for that only. docs/src/engines.md says what is proven.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/../setup/lib.sh"
cd "$REPO"
# What is built here is built against another torch than vLLM's: only cargo is given its place.
LIBRARIES=$(source e2e/setup/env.sh && echo "${LD_LIBRARY_PATH:-}")
VENV=$CACHE/venv-vllm
PYTHON=$VENV/bin/python
SGLANG_VERSION=0.5.23
SGLANG=$CACHE/sglang-$SGLANG_VERSION
PORT=${GRPO_VLLM_PORT:-18001}
POOLS=operator/src/inference_pool/golden
WORK=$(mktemp -d)
SERVER=

stop_server() {
  [ -n "$SERVER" ] || return 0
  kill -- "-$SERVER" 2> /dev/null || true
  wait "$SERVER" 2> /dev/null || true
  SERVER=
}
trap 'stop_server; rm -rf "$WORK"' EXIT

install_vllm() {
  local hash
  hash=$(hash_of e2e/engines/requirements.txt)
  if fresh vllm "$hash" && [ -x "$VENV/bin/vllm" ]; then note "as it was"; return; fi
  rm -rf "$VENV"
  python3 -m venv "$VENV"
  "$PYTHON" -m pip install --quiet --no-deps --no-compile --only-binary=:all: -r e2e/engines/requirements.txt
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

tiny_model() { "$PYTHON" e2e/engines/tiny_qwen3.py "$WORK/tiny"; }

# serve POOL: the command line of its golden file, but for the model's folder and the port, and the environment beside it.
serve() {
  local arguments
  mapfile -t arguments < <("$PYTHON" e2e/engines/golden.py "$POOLS/$1/objects.yaml" "$WORK/tiny/model" "$PORT")
  VLLM_SERVER_DEV_MODE=1 VLLM_ALLOW_RUNTIME_LORA_UPDATING=1 VLLM_NO_USAGE_STATS=1 DO_NOT_TRACK=1 HF_HUB_OFFLINE=1 \
    VLLM_CACHE_ROOT="$WORK/cache" setsid "$VENV/bin/vllm" serve "${arguments[@]}" > "$CACHE/logs/$1.log" 2>&1 &
  SERVER=$!
}

answers() {
  for _ in $(seq 600); do
    curl -sf "http://127.0.0.1:$PORT/health" > /dev/null && return
    kill -0 "$1" 2> /dev/null || { tail -n 50 "$CACHE/logs/$2.log"; return 1; }
    sleep 0.5
  done
  tail -n 50 "$CACHE/logs/$2.log"
  return 1
}

# behind_an_agent TEST: a test of the agent that needs this server.
behind_an_agent() {
  export GRPO_VLLM_URL=http://127.0.0.1:$PORT GRPO_VLLM_TINY=$WORK/tiny
  LD_LIBRARY_PATH=$LIBRARIES cargo test --workspace --exclude grpo-native --exclude grpo-trainer --test real_vllm -- \
    --ignored --exact "$1" --nocapture
  note "$1"
}

build_agent() {
  LD_LIBRARY_PATH=$LIBRARIES cargo test --workspace --exclude grpo-native --exclude grpo-trainer --test real_vllm --no-run
}

. e2e/setup/env.sh
unset LD_LIBRARY_PATH
stage "vLLM's CPU build" install_vllm
stage "SGLang's sources" unpack_sglang
stage "read by vLLM" read_by vllm "$POOLS"/*/objects.yaml $(compgen -G "docs/examples/golden/*.yaml")
stage "read by SGLang" read_by sglang "$SGLANG" "$POOLS"/*/objects.yaml $(compgen -G "docs/examples/golden/*.yaml")
stage "a tiny Qwen3" tiny_model
stage "the agent's tests" build_agent
for each in vllm-cpu-lora:a_real_vllm_swaps_adapters vllm-cpu:a_real_vllm_takes_full_weights; do
  serve "${each%%:*}"
  stage "vLLM serves (${each%%:*})" answers "$SERVER" "${each%%:*}"
  stage "behind an agent (${each%%:*})" behind_an_agent "${each##*:}"
  stop_server
done
