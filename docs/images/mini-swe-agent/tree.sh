#!/usr/bin/env bash
# The files of the mini-swe-agent image: tree.sh FOLDER makes FOLDER/agent from PyPI and Debian packages. Needs Python 3 with
# pip, and Debian 12, whose Python 3.11 it takes: tasks may have an older one, or none.
#
#   docs/images/mini-swe-agent/tree.sh out && docker build -t registry.example.com/mini-swe-agent:2.4.6 -f docs/images/mini-swe-agent/Dockerfile out
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
. "$here/../agent-runtime.sh"

mkdir -p "${1:?tree.sh FOLDER}"
out=$(cd "$1" && pwd)
work=$(mktemp -d "$out/work.XXXXXX")
trap 'rm -rf "$work"' EXIT

agent="$work/agent"
mkdir -p "$agent/mini"
add_python "$work" "$agent"
# Without litellm and what else the command-line program wants (700 MB): run.py has a model class of its own.
python3 -m pip install --quiet --disable-pip-version-check --root-user-action=ignore --no-deps --target "$agent/mini/site" \
  --platform manylinux2014_x86_64 --python-version 3.11 --only-binary=:all: --requirement "$here/requirements.txt"
cp "$here/run.py" "$agent/mini/run.py"

chmod -R a+rX "$agent"
rm -rf "$out/agent"
mv "$agent" "$out/agent"
