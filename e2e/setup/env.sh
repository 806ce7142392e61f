# The environment of the workspace's build and tests. Sourced: `. e2e/setup/env.sh`. libtorch comes from the Python
# wheel in the cache; all build outputs go to the cache, not into the checkout.

export GRPO_CACHE="${GRPO_CACHE:-$HOME/.cache/grpo-operator}"
export CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-$GRPO_CACHE/target}"
# The cluster of these scripts, never the shell's: the demo would install its chart there.
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

# The interpreter itself goes before pyenv's python3, a script that starts more slowly than Python: tests start Python
# thousands of times.
_grpo_python=$(python3 -c 'import os, sys; print(os.path.dirname(sys.executable))' 2> /dev/null) || true
case ":$PATH:" in
  *":${_grpo_python:-/usr/bin}:"*) ;;
  *) export PATH="$GRPO_CACHE/bin:$_grpo_python:$PATH" ;;
esac
unset _grpo_python

# When two checkouts share a target directory, cargo distinguishes their crates only by times, so an older checkout would get
# binaries of a newer one. Another checkout's build of this workspace is therefore deleted; dependencies stay.
_grpo_checkout=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
if [ -d "$CARGO_TARGET_DIR" ] && [ "$(cat "$CARGO_TARGET_DIR/checkout" 2> /dev/null)" != "$_grpo_checkout" ]; then
  rm -rf "$CARGO_TARGET_DIR"/debug/incremental \
    "$CARGO_TARGET_DIR"/{,*/}debug/{.fingerprint,deps,examples}/{,lib}{grpo,sandboxd}[-_]*
fi
mkdir -p "$CARGO_TARGET_DIR"
printf '%s\n' "$_grpo_checkout" > "$CARGO_TARGET_DIR/checkout"
unset _grpo_checkout
