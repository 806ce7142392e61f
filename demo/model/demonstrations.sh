#!/usr/bin/env bash
# Writes the warm start's demonstrations to the cache (about a minute; skipped if the inputs have not changed).
# `demonstrations.sh --tokenizer` trains the committed tokenizer and golden conversation again, which invalidates the
# weights.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
. "$here/../tasks/lib.sh"

out="$DEMO/warmstart.jsonl"
stamp=$(cd "$here/.." && cat model/*.py model/packages.lock tasks/flips.py model/tokenizer.json | sha256sum | cut -d' ' -f1)
if [ $# -eq 0 ] && [ -f "$out" ] && [ "$(cat "$DEMO/warmstart.stamp" 2>/dev/null)" = "$stamp" ]; then
  echo "$out as it was"
  exit
fi
venv
"$VENV_TASKS/bin/pip" download --quiet --no-deps --require-hashes -r "$here/packages.lock" -d "$DEMO/wheels"
"$VENV_TASKS/bin/python" "$here/demonstrations.py" --stdlib /usr/lib/python3.11 \
  --wheels "$DEMO"/wheels/networkx-3.6.1-*.whl "$DEMO"/wheels/sympy-1.14.0-*.whl --out "$out" "$@"
(cd "$here/.." && cat model/*.py model/packages.lock tasks/flips.py model/tokenizer.json | sha256sum | cut -d' ' -f1) > "$DEMO/warmstart.stamp"
