#!/usr/bin/env bash
# The files of images of agents that have no preset: tree.sh NAME FOLDER makes FOLDER/agent. NAME is codex, claude-code, gemini-cli,
# opencode, pi, aider or gptme; NAME.yaml has its version and its command line. Needs npm, Python 3.11 with pip, and Debian 12.
#
#   docs/images/others/tree.sh codex out && docker build -t registry.example.com/codex:0.169.0 -f docs/images/others/Dockerfile out
#
# The programs of codex need no C library. Those of claude-code and opencode need the GNU C library of the task's image. gemini-cli,
# pi, aider and gptme have an interpreter with libraries of its own.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
. "$here/../agent-runtime.sh"
# What pi depends on, as the registry had it on this day.
PI_DAY=2026-11-15

name=${1:?tree.sh NAME FOLDER}
mkdir -p "${2:?tree.sh NAME FOLDER}"
out=$(cd "$2" && pwd)
work=$(mktemp -d "$out/work.XXXXXX")
trap 'rm -rf "$work"' EXIT
agent="$work/agent"
mkdir -p "$agent"
version=$(sed -n 's/^ *image: .*://p' "$here/$name.yaml")

# packages FOLDER ARGUMENT...: packages of PyPI for Debian's Python, as pip names them.
packages() {
  local folder=$1
  shift
  python3 -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' || { echo "python3 is not Python 3.11" >&2; return 1; }
  python3 -m pip install --quiet --disable-pip-version-check --root-user-action=ignore --target "$folder" "$@"
}

make_codex() {
  local vendor="$work/codex/vendor/x86_64-unknown-linux-musl"
  npm_files "$work" @openai/codex "$version-linux-x64" "$work/codex"
  mkdir -p "$agent/codex/bin"
  cp "$vendor/bin/codex" "$agent/codex/bin/codex"
  cp -r "$vendor/codex-path" "$agent/codex/codex-path"
}

make_claude_code() {
  npm_files "$work" @anthropic-ai/claude-code-linux-x64 "$version" "$agent/claude-code"
}

make_gemini_cli() {
  add_node "$work" "$agent"
  npm_files "$work" @google/gemini-cli "$version" "$agent/gemini-cli"
  cp "$here/gemini-cli-settings.json" "$agent/gemini-cli/settings.json"
}

make_opencode() {
  npm_files "$work" opencode-linux-x64-baseline "$version" "$agent/opencode"
}

make_pi() {
  add_node "$work" "$agent"
  npm install --silent --prefix "$agent/pi" --no-audit --no-fund --ignore-scripts --omit=optional --no-package-lock \
    --before "$PI_DAY" "@mariozechner/pi-coding-agent@$version"
  cp "$here/pi-endpoint.js" "$agent/pi/endpoint.js"
}

make_aider() {
  add_python "$work" "$agent"
  packages "$agent/aider/site" "aider-chat==$version"
  cp "$here/aider-models.json" "$agent/aider/models.json"
}

make_gptme() {
  add_python "$work" "$agent"
  # gptme's own version stands in the list.
  packages "$agent/gptme/site" --no-deps --requirement "$here/requirements-gptme.txt"
}

"make_${name//-/_}"
chmod -R a+rX "$agent"
rm -rf "$out/agent"
mv "$agent" "$out/agent"
