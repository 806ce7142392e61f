#!/usr/bin/env bash
# The pods' network of a kind cluster without kindnet, whose program is in no package registry: as kindnet does, a pair of
# virtual cards for each pod, a route to each other node's pods, and the node's address for what leaves the pods' network.
# The machine itself has routes too, to pods and to services. kube-router enforces NetworkPolicies.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/../cluster/lib.sh"

# nodes: a line for each, "NAME ADDRESS PODS".
nodes() {
  kube get nodes -o json | jq -r '.items[] | select(.spec.podCIDR) |
    "\(.metadata.name) \([.status.addresses[] | select(.type == "InternalIP") | .address | select(contains(":") | not)][0]) \(.spec.podCIDR)"'
}

# plugin PODS: the configuration of the network plugins.
plugin() {
  jq -n --arg pods "$1" '{cniVersion: "0.3.1", name: "grpo", plugins: [
    {type: "ptp", mtu: 1500, ipam: {type: "host-local", ranges: [[{subnet: $pods}]], routes: [{dst: "0.0.0.0/0"}]}},
    {type: "portmap", capabilities: {portMappings: true}}]}'
}

all_have_pods() { [ "$(nodes | wc -l)" -eq "$(kube get nodes -o name | wc -l)" ]; }

await 60 all_have_pods
list=$(nodes)
while read -r node address pods; do
  {
    echo "set -e"
    while read -r _ other theirs; do
      [ "$other" = "$address" ] || echo "ip route replace $theirs via $other"
    done <<< "$list"
    echo "iptables -w -t nat -C POSTROUTING -s $POD_CIDR ! -d $POD_CIDR -j MASQUERADE 2> /dev/null || iptables -w -t nat -A POSTROUTING -s $POD_CIDR ! -d $POD_CIDR -j MASQUERADE"
    printf "mkdir -p /etc/cni/net.d\ncat > /etc/cni/net.d/10-grpo.conflist << 'END'\n%s\nEND\n" "$(plugin "$pods")"
  } | docker exec -i "$node" bash
  ip route replace "$pods" via "$address"
done <<< "$list"
ip route replace "$SERVICE_CIDR" via "$(awk '$1 ~ /control-plane/ { print $2; exit }' <<< "$list")"
sed "s|@SERVICE_CIDR@|$SERVICE_CIDR|" "$REPO/e2e/kind/policies.yaml" | kube apply -f -
kube --namespace kube-system rollout status daemonset/kube-router --timeout=120s
