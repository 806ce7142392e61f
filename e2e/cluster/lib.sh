# Shared by the cluster scripts: addresses, folders, and the access to the cluster's namespaces. Sourced, not run.
#
# The whole cluster lives in one set of namespaces (network, mounts, processes) held by one process. The machine sees
# nothing of it, and ending that process ends everything: servers, pods, mounts, addresses.

. "$(dirname "${BASH_SOURCE[0]}")/../setup/lib.sh"

CLUSTER_DIR="$REPO/e2e/cluster"
RUN="$CACHE/run"                      # the running cluster: keys, logs, data; removed by down.sh
STORE="$CACHE/containerd"             # images; survives down.sh
HOLDER_FILE="$RUN/holder"             # the holder's process id and start time
CLUSTER_KUBECONFIG="$CACHE/kubeconfig"

NODE=grpo-node
CGROUP=grpo
HOST_IP=10.111.0.1                    # this machine's end of the wire
NODE_IP=10.111.0.2                    # the node's end
POD_CIDR=10.112.0.0/16
SERVICE_CIDR=10.113.0.0/16
API_SERVICE_IP=10.113.0.1
DOMAIN=cluster.local
VOLUMES=${GRPO_VOLUMES:-12}

# start_time PID: the start of a process, in ticks since boot; together with its id it is unique for ever.
start_time() { awk '{ sub(/.*\) /, ""); print $20 }' "/proc/$1/stat" 2> /dev/null; }

# holder: prints the holder's process id if it is alive.
holder() {
  local pid began
  { read -r pid began < "$HOLDER_FILE"; } 2> /dev/null || return 1
  [ -n "$began" ] && [ "$(start_time "$pid")" = "$began" ] || return 1
  printf '%s\n' "$pid"
}

# inside COMMAND...: runs a command in the cluster's namespaces.
inside() {
  local pid
  pid=$(holder) || die "the cluster is not up (make cluster)"
  nsenter --target "$pid" --net --mount --pid -- "$@"
}

kube() { kubectl --kubeconfig "$CLUSTER_KUBECONFIG" "$@"; }

images() { inside ctr --namespace k8s.io images "$@"; }

# await SECONDS COMMAND...: polls until the command succeeds.
await() {
  local deadline=$(($(now_ms) + $1 * 1000))
  shift
  until "$@" > /dev/null 2>&1; do
    [ "$(now_ms)" -lt "$deadline" ] || { say "waited in vain for: $*"; return 1; }
    sleep 0.1
  done
}

# uses_kind: true if a container engine answers and kind is installed; then kind makes the cluster.
uses_kind() {
  [ "${GRPO_CLUSTER:-}" != local ] && command -v kind > /dev/null && docker info > /dev/null 2>&1
}
