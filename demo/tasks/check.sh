#!/usr/bin/env bash
# Rechecks four of the tasks that build.sh made, end to end in chroots, and tries to cheat in them. Seconds.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
. "$here/lib.sh"
exec "$VENV_TASKS/bin/python" "$here/check.py" "$DEMO" "$@"
