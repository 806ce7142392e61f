#!/usr/bin/env bash
# Random conversations with tools, rendered by Jinja2 with the chat templates of TRL 1.16.0 and by grpo-chat-template. Installs Jinja2 and fetches TRL's wheel, and
# needs network only for that.
#   check.sh            2,000 conversations, each with five templates
#   check.sh --record   and writes 200 others to libs/chat-template/src/tests/peers.jsonl, which `make test-unit` reads
# GRPO_PEER_NUMBER and GRPO_PEER_SEED change the number and the choice of conversations.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/../setup/lib.sh"
cd "$REPO"

VENV="$CACHE/venv-templates"
[ -x "$VENV/bin/python" ] || python3 -m venv "$VENV"
"$VENV/bin/python" -m pip install --quiet -r e2e/templates/requirements.txt
WHEELS="$CACHE/wheels-templates"
"$VENV/bin/python" -m pip download --quiet --no-deps --dest "$WHEELS" trl==1.16.0
made() { "$VENV/bin/python" e2e/templates/cases.py "$WHEELS"/trl-1.16.0-*.whl "$@"; }

CASES="$CACHE/template-cases.jsonl"
made "$CASES" --number "${GRPO_PEER_NUMBER:-2000}" --seed "${GRPO_PEER_SEED:-2}"
[ "${1:-}" != --record ] || made libs/chat-template/src/tests/peers.jsonl --number 200 --seed 1 --texts 8
. e2e/setup/env.sh
GRPO_TEMPLATE_CASES="$CASES" cargo test -p grpo-chat-template -p grpo-features --lib
