# The environment in which the workspace builds and its tests run. Sourced: `. e2e/setup/env.sh`.
# libtorch comes from the Python wheel in the cache; everything that is built lands in the cache, not in the checkout.

export GRPO_CACHE="${GRPO_CACHE:-$HOME/.cache/grpo-operator}"
export CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-$GRPO_CACHE/target}"
# The cluster of these scripts, never the one of the shell: the demo would install its chart there.
export KUBECONFIG="$GRPO_CACHE/kubeconfig"

_grpo_site=$(echo "$GRPO_CACHE"/venv/lib/python3*/site-packages)
if [ -d "$_grpo_site/torch/lib" ]; then
  export LIBTORCH="$_grpo_site/torch"
  export LIBTORCH_CXX11_ABI=1
  case ":${LD_LIBRARY_PATH:-}:" in
    *":$LIBTORCH/lib:"*) ;;
    *) export LD_LIBRARY_PATH="$LIBTORCH/lib:$_grpo_site/nvidia/cu13/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}" ;;
  esac
fi
unset _grpo_site

case ":$PATH:" in
  *":$GRPO_CACHE/bin:"*) ;;
  *) export PATH="$GRPO_CACHE/bin:$PATH" ;;
esac

# The interpreter itself before pyenv's python3, a script that takes longer than Python to start: tests start Python thousands
# of times.
_grpo_python=$(python3 -c 'import os, sys; print(os.path.dirname(sys.executable))' 2> /dev/null) || true
case ":$PATH:" in
  *":${_grpo_python:-/usr/bin}:"*) ;;
  *) export PATH="$GRPO_CACHE/bin:$_grpo_python:$PATH" ;;
esac
unset _grpo_python

# Cargo tells one checkout's crates from another's by times alone when both use one target directory, so an older checkout would
# be given binaries of a newer one. What another checkout built of this workspace is forgotten; dependencies stay.
_grpo_checkout=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
if [ -d "$CARGO_TARGET_DIR" ] && [ "$(cat "$CARGO_TARGET_DIR/checkout" 2> /dev/null)" != "$_grpo_checkout" ]; then
  rm -rf "$CARGO_TARGET_DIR"/debug/incremental \
    "$CARGO_TARGET_DIR"/{,*/}debug/{.fingerprint,deps,examples}/{,lib}{grpo,sandboxd}[-_]*
fi
mkdir -p "$CARGO_TARGET_DIR"
printf '%s\n' "$_grpo_checkout" > "$CARGO_TARGET_DIR/checkout"
unset _grpo_checkout
