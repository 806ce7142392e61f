# The parts of the local cluster: the command that starts each, and the check that it serves. Sourced by up.sh and part.sh. A
# part is a process in the cluster's namespaces; its id there is in $RUN/pids/NAME, its output in $RUN/logs/NAME.log.

PARTS=(etcd containerd apiserver controller-manager scheduler kubelet proxy coredns volumes)

# render FILE: a file of config/ with the @NAMES@ replaced.
render() {
  sed -e "s|@RUN@|$RUN|g; s|@STORE@|$STORE|g; s|@BIN@|$CACHE/bin|g; s|@NODE_IP@|$NODE_IP|g; s|@NODE@|$NODE|g" \
    -e "s|@POD_CIDR@|$POD_CIDR|g; s|@DOMAIN@|$DOMAIN|g; s|@CGROUP@|$CGROUP|g" "$CLUSTER_DIR/config/$1"
}

# launch NAME COMMAND...: starts a part in the background of the cluster's namespaces. All parts except the two
# ancestors of pods have priority over the machine's other work, so that a concurrent build does not make a node look
# dead.
launch() {
  local name=$1 haste=(nice -n -5)
  shift
  case "$name" in containerd | kubelet) haste=() ;; esac
  inside "${haste[@]}" setsid --fork bash -c 'echo $$ > "$1"; shift; exec "$@"' _ "$RUN/pids/$name" "$@" \
    < /dev/null >> "$RUN/logs/$name.log" 2>&1
}

running() { [ -s "$RUN/pids/$1" ] && inside kill -0 "$(cat "$RUN/pids/$1")" 2> /dev/null; }

start_etcd() {
  local sync=(--unsafe-no-fsync)
  [ -z "${GRPO_ETCD_FSYNC:-}" ] || sync=()
  launch etcd etcd --name grpo --data-dir "$RUN/etcd" "${sync[@]}" --log-level warn \
    --listen-client-urls http://127.0.0.1:2379 --advertise-client-urls http://127.0.0.1:2379 \
    --listen-peer-urls http://127.0.0.1:2380 --initial-advertise-peer-urls http://127.0.0.1:2380 \
    --initial-cluster grpo=http://127.0.0.1:2380 --quota-backend-bytes 4294967296 \
    --auto-compaction-mode periodic --auto-compaction-retention 5m
}
serves_etcd() { inside curl -fsS http://127.0.0.1:2379/health; }

start_containerd() {
  render containerd.toml > "$RUN/containerd.toml"
  mkdir -p "$RUN/cni" "$STORE"
  render cni.conflist > "$RUN/cni/10-grpo.conflist"
  launch containerd containerd --config "$RUN/containerd.toml" --log-level warn
}
serves_containerd() { images list -q; }

start_apiserver() {
  launch apiserver kube-apiserver --etcd-servers http://127.0.0.1:2379 \
    --advertise-address "$NODE_IP" --secure-port 6443 --service-cluster-ip-range "$SERVICE_CIDR" \
    --tls-cert-file "$PKI/apiserver.crt" --tls-private-key-file "$PKI/apiserver.key" --client-ca-file "$PKI/ca.crt" \
    --kubelet-client-certificate "$PKI/kubelet-client.crt" --kubelet-client-key "$PKI/kubelet-client.key" \
    --kubelet-certificate-authority "$PKI/ca.crt" --kubelet-preferred-address-types InternalIP \
    --requestheader-client-ca-file "$PKI/ca.crt" --requestheader-allowed-names front-proxy-client \
    --requestheader-username-headers X-Remote-User --requestheader-group-headers X-Remote-Group \
    --requestheader-extra-headers-prefix X-Remote-Extra- \
    --proxy-client-cert-file "$PKI/front-proxy.crt" --proxy-client-key-file "$PKI/front-proxy.key" \
    --service-account-issuer "https://kubernetes.default.svc.$DOMAIN" \
    --service-account-signing-key-file "$PKI/service-accounts.key" --service-account-key-file "$PKI/service-accounts.pub" \
    --authorization-mode Node,RBAC --enable-admission-plugins NodeRestriction --allow-privileged=true \
    --max-requests-inflight 2000 --max-mutating-requests-inflight 1000 --profiling=false --v 1
}
serves_apiserver() { kube get --raw /readyz; }

start_controller-manager() {
  launch controller-manager kube-controller-manager --kubeconfig "$RUN/controller-manager.kubeconfig" \
    --authentication-kubeconfig "$RUN/controller-manager.kubeconfig" --authorization-kubeconfig "$RUN/controller-manager.kubeconfig" \
    --service-account-private-key-file "$PKI/service-accounts.key" --root-ca-file "$PKI/ca.crt" \
    --use-service-account-credentials=true --leader-elect=false --kube-api-qps 500 --kube-api-burst 1000 \
    --cluster-signing-cert-file "$PKI/ca.crt" --cluster-signing-key-file "$PKI/ca.key" \
    --node-monitor-grace-period 30s --pvclaimbinder-sync-period 5s --endpointslice-updates-batch-period 0s --profiling=false
}
serves_controller-manager() { inside curl -fsSk https://127.0.0.1:10257/healthz; }

start_scheduler() {
  launch scheduler kube-scheduler --kubeconfig "$RUN/scheduler.kubeconfig" \
    --authentication-kubeconfig "$RUN/scheduler.kubeconfig" --authorization-kubeconfig "$RUN/scheduler.kubeconfig" \
    --leader-elect=false --kube-api-qps 500 --kube-api-burst 1000 --profiling=false
}
serves_scheduler() { inside curl -fsSk https://127.0.0.1:10259/healthz; }

start_kubelet() {
  render kubelet.yaml > "$RUN/kubelet.yaml"
  : > "$RUN/resolv.conf"
  mkdir -p "$RUN/pod-logs"
  launch kubelet kubelet --config "$RUN/kubelet.yaml" --kubeconfig "$RUN/kubelet.kubeconfig" --root-dir "$RUN/kubelet" \
    --hostname-override "$NODE" --node-ip "$NODE_IP" --node-labels grpo.dev/local=true
}
serves_kubelet() { inside curl -fsS http://127.0.0.1:10248/healthz; }

start_proxy() {
  render kube-proxy.yaml > "$RUN/kube-proxy.yaml"
  launch proxy kube-proxy --config "$RUN/kube-proxy.yaml"
}
serves_proxy() { inside curl -fsS http://127.0.0.1:10256/livez; }

start_coredns() {
  render Corefile > "$RUN/Corefile"
  launch coredns coredns -conf "$RUN/Corefile"
}
serves_coredns() { inside curl -fsS "http://$NODE_IP:8181/ready"; }

# No provisioner runs here: this part waits for volumes whose claim is gone, empties them and offers them again.
start_volumes() { launch volumes bash "$CLUSTER_DIR/volumes.sh" "$RUN" "$CLUSTER_KUBECONFIG"; }
serves_volumes() { running volumes; }

start_part() { running "$1" || "start_$1"; }

# stop_part NAME [SIGNAL]: ends one part and waits until it is gone.
stop_part() {
  local pid
  running "$1" || return 0
  pid=$(cat "$RUN/pids/$1")
  inside kill "-${2:-TERM}" "$pid"
  while inside kill -0 "$pid" 2> /dev/null; do sleep 0.1; done
}
