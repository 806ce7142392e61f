# Shared by the demo's build scripts: where its cache is and which Python environment its tools run in. Sourced, not run.
# Wants: python3 3.11 with venv.

DEMO="${GRPO_CACHE:-$HOME/.cache/grpo-operator}/demo"
VENV_TASKS="$DEMO/venv-tasks"
REQUIREMENTS="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)/requirements.txt"
mkdir -p "$DEMO"

# venv: the environment holds what requirements.txt says.
venv() {
  cmp -s "$REQUIREMENTS" "$VENV_TASKS/requirements.txt" && return
  [ -x "$VENV_TASKS/bin/python" ] || python3 -m venv "$VENV_TASKS"
  "$VENV_TASKS/bin/pip" install --quiet -r "$REQUIREMENTS"
  cp "$REQUIREMENTS" "$VENV_TASKS/requirements.txt"
}
