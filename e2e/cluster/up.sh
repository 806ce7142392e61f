#!/usr/bin/env bash
# Starts a real Kubernetes on this machine: one node, real kubelet and containerd, services, DNS, volumes; no registry,
# no container engine. If the cluster is already up, it only checks it. If the machine has a container engine and kind,
# kind makes the cluster instead. Leaves a kubeconfig at $GRPO_CACHE/kubeconfig.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
. "$CLUSTER_DIR/pki.sh"
. "$CLUSTER_DIR/parts.sh"

CONTROLLERS=(cpu cpuacct cpuset memory devices freezer blkio pids systemd hugetlb net_cls net_prio perf_event rdma misc)

# namespaces: starts the holder and records it.
namespaces() {
  local ready="$RUN/holder-ready" pid=""
  mkdir -p /var/lib/cni "$RUN/pids" "$RUN/logs"
  rm -f "$ready"
  setsid unshare --net --mount --pid --fork --mount-proc --propagation private \
    bash "$CLUSTER_DIR/holder.sh" "$ready" < /dev/null > "$RUN/logs/holder.log" 2>&1 &
  local unshare=$!
  await 5 test -e "$ready"
  pid=$(cat "/proc/$unshare/task/$unshare/children")
  pid=${pid// /}
  printf '%s %s\n' "$pid" "$(start_time "$pid")" > "$HOLDER_FILE"
}

# wire: a virtual cable from this machine to the node, and routes to pods and services over it.
wire() {
  local pid
  pid=$(holder)
  ip link del grpo-host 2> /dev/null || true
  ip link add grpo-host type veth peer name grpo-node netns "$pid"
  ip addr add "$HOST_IP/30" dev grpo-host
  ip link set grpo-host up
  inside ip link set lo up
  inside ip addr add "$NODE_IP/30" dev grpo-node
  inside ip link set grpo-node up
  inside ip route add default via "$HOST_IP"
  inside sysctl -qw net.ipv4.ip_forward=1 net.ipv4.conf.all.rp_filter=0 net.ipv4.conf.default.rp_filter=0
  ip route replace "$POD_CIDR" via "$NODE_IP"
  ip route replace "$SERVICE_CIDR" via "$NODE_IP"
}

# cgroups: one group for all pods, in every hierarchy that this machine mounts.
cgroups() {
  local c dir parent
  if [ -e /sys/fs/cgroup/cgroup.controllers ]; then mkdir -p "/sys/fs/cgroup/$CGROUP"; return; fi
  for c in "${CONTROLLERS[@]}"; do
    parent=/sys/fs/cgroup/$c
    [ -d "$parent" ] || continue
    dir=$parent/$CGROUP
    mkdir -p "$dir"
    [ "$c" != cpuset ] || { cat "$parent/cpuset.cpus" > "$dir/cpuset.cpus"; cat "$parent/cpuset.mems" > "$dir/cpuset.mems"; }
    [ "$c" != memory ] || echo 1 > "$dir/memory.use_hierarchy" 2> /dev/null || true
  done
}

# part NAME: starts a part and waits until it serves.
part() { start_part "$1"; await "${2:-30}" "serves_$1"; }

control_plane() {
  part etcd
  part apiserver 60
  start_part controller-manager
  start_part scheduler
  kube apply -f "$CLUSTER_DIR/config/cluster.yaml"
  start_part proxy
  start_part coredns
}

# runtime: containerd without an earlier cluster's state; its images stay.
runtime() {
  part containerd
  local c
  if [ -n "$(inside ctr -n k8s.io containers ls -q)$(inside ctr -n k8s.io sandboxes ls 2> /dev/null | sed 1d)" ]; then
    for c in $(inside ctr -n k8s.io containers ls -q); do inside ctr -n k8s.io containers rm "$c" || true; done
    for c in $(inside ctr -n k8s.io sandboxes ls | awk 'NR > 1 { print $1 }'); do inside ctr -n k8s.io sandboxes rm --force "$c" || true; done
    stop_part containerd
    part containerd
  fi
  "$CLUSTER_DIR/images.sh" forget
  "$CLUSTER_DIR/images.sh" pause
}

volumes() {
  local i name
  for i in $(seq 1 "$VOLUMES"); do
    name=volume-$i
    mkdir -p "$RUN/volumes/$name"
    chmod 0777 "$RUN/volumes/$name"
    render volume.yaml | sed "s|@NAME@|$name|g"
    printf -- '---\n'
  done | kube apply -f - > /dev/null
  start_part volumes
}

node() {
  await 60 kube get node "$NODE"
  kube wait --for=condition=Ready "node/$NODE" --timeout=60s
  kube label --overwrite node "$NODE" grpo.dev/pool=gpu > /dev/null
  await 30 kube get serviceaccount default
}

# serving: true if every part answers.
serving() {
  local p
  for p in "${PARTS[@]}"; do await 30 "serves_$p" || die "$p does not serve (log: $RUN/logs/$p.log)"; done
}

boot() {
  "$CLUSTER_DIR/down.sh" --quiet
  mkdir -p "$RUN"
  stage "keys" make_pki
  namespaces
  stage "namespaces and wire" eval "wire; cgroups"
  stage "container runtime" runtime &
  local runtime=$!
  stage "control plane" control_plane
  wait "$runtime"
  start_part kubelet
  stage "volumes" volumes
  stage "node ready" node
  stage "all parts serve" serving
  touch "$RUN/booted"
}

main() {
  local start
  start=$(now_ms)
  if uses_kind; then exec "$CLUSTER_DIR/kind.sh" up; fi
  [ "$(id -u)" -eq 0 ] || die "the local cluster needs root (namespaces, cgroups); or install a container engine and kind"
  "$REPO/e2e/setup/setup.sh"
  if holder > /dev/null && [ -e "$RUN/booted" ]; then
    local p
    for p in "${PARTS[@]}"; do start_part "$p"; done
    stage "cluster is up" serving
  else
    boot
  fi
  say "$(printf '%6ss  cluster %s; kubectl --kubeconfig %s get nodes' "$(seconds_since "$start")" "$NODE" "$CLUSTER_KUBECONFIG")"
}

main
