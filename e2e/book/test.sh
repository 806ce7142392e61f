#!/usr/bin/env bash
# Runs the pages that a new user types from, as printed: each `sh` block of quickstart.md, of viewer.md, which looks at the
# run of the quickstart, of operate/install.md, and of the first run on GPUs, in order, one shell for each page, in the
# repository. A block under the line `<!-- not run: REASON -->` is left out and named.
#
# One name is replaced: registry.example.com becomes a registry on this machine without TLS. The pages run on the local
# cluster, which the quickstart starts; the quickstart's operator is removed before the page about its installation.
#   test.sh [PAGE...]       without a name: all
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/../cluster/lib.sh"
. "$REPO/e2e/release/registry.sh"

ENGINES=grpo.dev/role=engine,grpo.dev/inference-pool=qwen3-8b-swe-gym
PAGES=(quickstart.md viewer.md operate/install.md examples/qwen3-8b-swe-gym.md)

# script PAGE: its blocks as one script. Skipped blocks become comments.
script() {
  awk '
    /^<!-- not run: .* -->$/ { reason = $0; sub(/^<!-- /, "", reason); sub(/ -->$/, "", reason); next }
    /^```sh$/                { inside = 1; if (reason != "") print "# " reason; next }
    /^```/                   { inside = 0; reason = "" }
    inside && reason == ""   { print }
  ' "$REPO/docs/src/$1" |
    sed -e "s|oci://registry.example.com/grpo/charts/grpo-operator|oci://$REGISTRY/grpo/charts/grpo-operator --plain-http|" \
      -e "s|registry.example.com/grpo|$REGISTRY/grpo|g"
}

# page NAME: runs it. A page without commands is an error: it was not read.
page() {
  local name=$1 work commands
  work=$(mktemp -d)
  script "$name" > "$work/page.sh"
  commands=$(grep -cvE '^(#|$)' "$work/page.sh" || true)
  [ "$commands" -ge 3 ] || die "docs/src/$name has $commands lines of commands: its blocks were not found"
  ! grep -q 'registry\.example\.com' "$work/page.sh" || die "docs/src/$name names registry.example.com in a way that this test does not replace"
  say "--- docs/src/$name: $commands lines; left out: $(grep -c '^# not run' "$work/page.sh" || true)"
  (cd "$REPO" && bash -euo pipefail -v "$work/page.sh") < /dev/null
  rm -rf "$work"
}

# back: restores the operator of the source tree for later tests, in a cluster whose kubelet has pulled no image: otherwise
# images with the same content would be pulled again under their other names.
back() {
  stop
  "$REPO/e2e/cluster/down.sh"
  "$REPO/demo/prepare.sh"
}

# The page needs what the quickstart leaves: the cluster, the plugin and the ended run `demo`.
viewer_page() {
  . "$REPO/e2e/setup/env.sh"
  export KUBECONFIG="$CLUSTER_KUBECONFIG" PATH="$HOME/.local/bin:$PATH"
  kube get grporun demo > /dev/null || die "there is no run demo: run the quickstart first (make demo)"
  [ -x "$HOME/.local/bin/kubectl-grpo" ] || make -C "$REPO" --no-print-directory install-plugin
  page viewer.md
}

# without_operator: a cluster without the operator, beside an empty registry. A kubelet that has pulled images from an
# earlier one would not take those of the source tree, so such a cluster is made anew.
without_operator() {
  if [ -n "${SERVER:-}" ]; then
    stop
    wait "$SERVER" || true
    "$CLUSTER_DIR/down.sh"
  fi
  "$REPO/demo/prepare.sh"
  . "$REPO/e2e/setup/env.sh"
  export KUBECONFIG="$CLUSTER_KUBECONFIG" GRPO_PLAIN_HTTP=1 PATH="$HOME/.local/bin:$PATH"
  trap back EXIT
  stage "registry" registry_program
  serve
  kube delete grporun --all --wait
  stage "operator removed" remove_operator
}

# engines COUNT: whether the page's run has so many pods of engines.
engines() { [ "$(kube get pods -l "$ENGINES" -o name | wc -l)" -eq "$1" ]; }

# The node claims the cards that the page asks for; no process can use one. Its run has engines on the node and gets no
# further: their image is not here.
gpu_page() {
  without_operator
  "$CLUSTER_DIR/gpu.sh" 8
  page "$1"
  await 60 engines 4
  kube wait --for=condition=PodScheduled --timeout=60s pods -l "$ENGINES"
  kube delete grporun qwen3-8b-swe-gym --wait
  kube delete persistentvolumeclaim runs
}

! uses_kind || die "this test needs the local cluster, whose nodes reach a registry on this machine: set GRPO_CLUSTER=local"
[ $# -gt 0 ] || set -- "${PAGES[@]}"
for name in "$@"; do
  case $name in
    quickstart.md) page "$name" ;;
    viewer.md) viewer_page ;;
    operate/install.md) without_operator; page "$name" ;;
    examples/qwen3-8b-swe-gym.md) gpu_page "$name" ;;
    *) die "usage: test.sh [PAGE...], with pages of: ${PAGES[*]}" ;;
  esac
done
say "the pages run as printed: $*"
