#!/usr/bin/env bash
# The files of the qwen-code image: tree.sh FOLDER makes FOLDER/agent from npm and Debian packages. Needs npm, Python 3 with
# pip, and Debian 12.
#
#   docs/images/qwen-code/tree.sh out && docker build -t registry.example.com/qwen-code:0.24.4 -f docs/images/qwen-code/Dockerfile out
#
# The task's image needs bash: qwen-code runs every command with it.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
. "$here/../agent-runtime.sh"
QWEN_CODE=0.24.4
NODE_PTY=1.2.0-beta.10

mkdir -p "${1:?tree.sh FOLDER}"
out=$(cd "$1" && pwd)
work=$(mktemp -d "$out/work.XXXXXX")
trap 'rm -rf "$work"' EXIT

agent="$work/agent"
mkdir -p "$agent/qwen"
add_node "$work" "$agent"

npm_files "$work" @qwen-code/qwen-code "$QWEN_CODE" "$work/qwen"
# Not everything: skills, web shell and the other platforms' programs take 60 MB.
for part in cli.js package.json LICENSE chunks locales execution-worker.js vendor/tree-sitter vendor/ripgrep/x64-linux; do
  mkdir -p "$agent/qwen/$(dirname "$part")"
  cp -r "$work/qwen/$part" "$agent/qwen/$part"
done
chmod 755 "$agent/qwen/vendor/ripgrep/x64-linux/rg"
cp "$here/settings.json" "$agent/qwen/settings.json"
# Commands run in a terminal of their own: without one the output of a quick command gets lost now and then.
npm_files "$work" @lydell/node-pty "$NODE_PTY" "$agent/qwen/node_modules/@lydell/node-pty"
npm_files "$work" @lydell/node-pty-linux-x64 "$NODE_PTY" "$agent/qwen/node_modules/@lydell/node-pty-linux-x64"

chmod -R a+rX "$agent"
rm -rf "$out/agent"
mv "$agent" "$out/agent"
