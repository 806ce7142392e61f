#!/usr/bin/env bash
# Checks the Python client: generated files, style, types, and its tests on the installed wheel, with the real plugin on
# a made store and on an API server without nodes; once more with the oldest packages that it allows. Installs into
# $GRPO_CACHE/venv-python-client (400 MB).
#   check.sh PLUGIN BENCH     the programs kubectl-grpo and grpo-bench-viewer
#   check.sh generate         only writes the generated files (make crds)
# GRPO_STORE and GRPO_DEMO_REPORT name a store of the demo and its report: the tests then read it in place of the made
# one.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/../setup/lib.sh"

if [ "${1:-}" != generate ]; then
  GRPO_KUBECTL_PLUGIN=$(realpath "$1")
  BENCH=$(realpath "$2")
  export GRPO_KUBECTL_PLUGIN
fi
# Tests run in another folder.
[ -z "${GRPO_STORE:-}" ] || GRPO_STORE=$(realpath "$GRPO_STORE")
[ -z "${GRPO_DEMO_REPORT:-}" ] || GRPO_DEMO_REPORT=$(realpath "$GRPO_DEMO_REPORT")
export GRPO_STORE=${GRPO_STORE:-} GRPO_DEMO_REPORT=${GRPO_DEMO_REPORT:-}
CLIENT="$REPO/operator/python"
VENV="$CACHE/venv-python-client"
OLDEST="$CACHE/venv-python-client-oldest"
# No files of Python's tools in the repository.
export PYTHONDONTWRITEBYTECODE=1 RUFF_NO_CACHE=true

# packages VENV REQUIREMENT...: a virtual environment with these packages.
packages() {
  local venv=$1 name hash
  shift
  name=$(basename "$venv")
  hash=$(hash_of "$@")
  if [ -x "$venv/bin/python" ] && fresh "$name" "$hash"; then note "as it was"; return; fi
  [ -x "$venv/bin/python" ] || python3 -m venv "$venv"
  "$venv/bin/python" -m pip install --quiet "$@"
  stamp "$name" "$hash"
}

wheel() {
  "$VENV/bin/python" -m build --wheel --no-isolation --outdir "$work/wheel" "$CLIENT"
  "$VENV/bin/python" -m pip install --quiet --force-reinstall --no-deps "$work"/wheel/*.whl
  "$OLDEST/bin/python" -m pip install --quiet --force-reinstall --no-deps "$work"/wheel/*.whl
  note "$(basename "$work"/wheel/*.whl)"
}

style() {
  "$VENV/bin/ruff" check "$CLIENT"
  "$VENV/bin/ruff" format --check "$CLIENT"
}

types() { (cd "$CLIENT" && "$VENV/bin/mypy" --cache-dir "$work/mypy"); }

# The types that users of the wheel see: the tests beside nothing else.
types_of_wheel() {
  cp -r "$CLIENT/tests" "$work/tests"
  (cd "$work/tests" && "$VENV/bin/mypy" --strict --python-executable "$VENV/bin/python" --cache-dir "$work/mypy-wheel" .)
}

# tests VENV: on the wheel that is installed there.
tests() {
  (cd "$CLIENT" && "$1/bin/python" -m pytest -p no:cacheprovider -q -rs) | tee "$work/said"
  note "$(tail -n 1 "$work/said")"
}

# api_server: etcd and kube-apiserver with the CRDs, without nodes. They run until this script ends.
api_server() {
  local etcd peer port kubeconfig="$work/kubeconfig"
  read -r etcd peer port < <("$VENV/bin/python" -c '
import socket
sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(3)]
print(*(one.getsockname()[1] for one in sockets))')
  openssl genrsa -out "$work/sa.key" 2048
  openssl rsa -in "$work/sa.key" -pubout -out "$work/sa.pub"
  openssl rand -hex 16 > "$work/token"
  echo "$(cat "$work/token"),admin,admin,system:masters" > "$work/tokens.csv"
  etcd --data-dir "$work/etcd" --unsafe-no-fsync --listen-peer-urls "http://127.0.0.1:$peer" \
    --listen-client-urls "http://127.0.0.1:$etcd" --advertise-client-urls "http://127.0.0.1:$etcd" &> "$work/etcd.log" &
  echo $! > "$work/etcd.pid"
  kube-apiserver --etcd-servers="http://127.0.0.1:$etcd" --bind-address=127.0.0.1 --secure-port="$port" --cert-dir="$work/certs" \
    --service-account-issuer=https://kubernetes.default --service-account-key-file="$work/sa.pub" \
    --service-account-signing-key-file="$work/sa.key" --token-auth-file="$work/tokens.csv" --authorization-mode=RBAC \
    --service-cluster-ip-range=10.0.0.0/24 --disable-admission-plugins=ServiceAccount &> "$work/kube-apiserver.log" &
  echo $! > "$work/kube-apiserver.pid"
  cat > "$kubeconfig" << CONFIG
apiVersion: v1
kind: Config
clusters:
- name: local
  cluster: {server: "https://127.0.0.1:$port", certificate-authority: "$work/certs/apiserver.crt", tls-server-name: kubernetes}
users: [{name: admin, user: {token: "$(cat "$work/token")"}}]
contexts: [{name: local, context: {cluster: local, user: admin, namespace: default}}]
current-context: local
CONFIG
  local deadline=$((SECONDS + 120))
  until kubectl --kubeconfig "$kubeconfig" get --raw /readyz; do
    [ "$SECONDS" -lt "$deadline" ] || { tail -n 20 "$work/kube-apiserver.log"; return 1; }
    sleep 0.5
  done
  kubectl --kubeconfig "$kubeconfig" apply --server-side -f "$REPO/charts/grpo-operator/crds"
  kubectl --kubeconfig "$kubeconfig" wait --for=condition=Established --timeout=60s \
    -f "$REPO/charts/grpo-operator/crds"
}

cleanup() {
  local name pid
  for name in kube-apiserver etcd; do
    [ -e "$work/$name.pid" ] || continue
    pid=$(cat "$work/$name.pid")
    kill "$pid" 2> /dev/null || true
    # They are children of a stage's shell, so `wait` does not know them; they write until they end.
    timeout 20 tail --pid="$pid" -f /dev/null || kill -9 "$pid" 2> /dev/null || true
  done
  rm -rf "$work"
}

work=$(mktemp -d)
trap cleanup EXIT
trap 'exit 130' INT TERM
stage "packages of the client" packages "$VENV" -r "$CLIENT/requirements.txt"
if [ "${1:-}" = generate ]; then
  stage "generated files" "$VENV/bin/python" "$CLIENT/generate.py"
  exit
fi
stage "its oldest packages" packages "$OLDEST" pandas==2.2.0 pydantic==2.8.0 pyyaml==6.0 pytest==8.4.2
stage "generated files" "$VENV/bin/python" "$CLIENT/generate.py" --check
stage "style" style
stage "types" types
stage "wheel" wheel
stage "types of the wheel" types_of_wheel
if [ -z "$GRPO_STORE" ]; then
  stage "store" "$BENCH" store "$work/store" --iterations 60 --groups 6 --samples 4 --hostile
  GRPO_STORE="$work/store"
fi
stage "API server" api_server
export GRPO_API_SERVER="$work/kubeconfig"
stage "tests" tests "$VENV"
stage "tests with the oldest packages" tests "$OLDEST"
