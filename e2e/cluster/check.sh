#!/usr/bin/env bash
# Shows that the cluster has the features that the tests need, and their speed: pods, a service and its name, an image
# volume, a user namespace, a volume claim, graphics cards, exec, deletion. Leaves nothing behind.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

NAMESPACE=grpo-check
IMAGE=grpo.dev/base:bookworm

k() { kube -n "$NAMESPACE" "$@"; }

# pod NAME COMMAND [SPEC [CONTAINER]]: a manifest; SPEC and CONTAINER are further fields in JSON.
pod() {
  jq -cn --arg name "$1" --arg command "$2" --argjson spec "${3:-{\}}" --argjson container "${4:-{\}}" --arg image "$IMAGE" '
    {apiVersion: "v1", kind: "Pod", metadata: {name: $name, labels: {app: $name}},
     spec: ({restartPolicy: "Never", terminationGracePeriodSeconds: 0, automountServiceAccountToken: false,
       containers: [{name: "main", image: $image, imagePullPolicy: "IfNotPresent", command: ["bash", "-c", $command]} + $container]} + $spec)}'
}

# says NAME EXPECTED: the pod succeeds and its log contains the expected text.
says() {
  k wait --for=jsonpath='{.status.phase}'=Succeeded "pod/$1" --timeout=60s > /dev/null || { k describe pod "$1"; k logs "$1"; return 1; }
  k logs "$1" | grep -q "$2" || { k logs "$1"; return 1; }
}

clean() { kube delete namespace "$NAMESPACE" --ignore-not-found --wait=true; }

begin() {
  clean
  kube create namespace "$NAMESPACE"
  await 20 k get serviceaccount default
}

first_pod() {
  pod server "cd /tmp && echo hello > word && exec python3 -m http.server 8000" '{}' \
    '{"readinessProbe": {"httpGet": {"path": "/word", "port": 8000}, "periodSeconds": 1}}' | k apply -f -
  k wait --for=condition=Ready pod/server --timeout=60s
  k exec server -- cat /tmp/word | grep -q hello
}

service() {
  k expose pod server --port 80 --target-port 8000 --name word
  pod client 'for i in $(seq 50); do python3 -c "import urllib.request as u; print(u.urlopen(\"http://word.'"$NAMESPACE"'.svc/word\").read())" && exit; sleep 0.2; done; exit 1' | k apply -f -
  says client hello
  if curl -fsS --max-time 5 "http://$(k get service word -o jsonpath='{.spec.clusterIP}')/word" | grep -q hello; then note "also from this machine"; else note "not from this machine"; fi
}

image_volume() {
  pod image-volume 'cat /volume/word' '{"volumes": [{"name": "v", "image": {"reference": "grpo.dev/check-volume:1", "pullPolicy": "IfNotPresent"}}]}' \
    '{"volumeMounts": [{"name": "v", "mountPath": "/volume"}]}' | k apply -f -
  says image-volume "from an image volume"
}

user_namespace() {
  pod userns 'id -u; cat /proc/self/uid_map; [ "$(awk "{print \$2}" /proc/self/uid_map)" -gt 0 ] && echo mapped' '{"hostUsers": false}' | k apply -f -
  says userns mapped
}

claim() {
  printf '{"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "c"}, "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}}' | k apply -f -
  pod claim 'echo kept > /data/x && cat /data/x' '{"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}], "securityContext": {"runAsUser": 65532, "runAsNonRoot": true, "fsGroup": 65532}}' \
    '{"volumeMounts": [{"name": "v", "mountPath": "/data"}]}' | k apply -f -
  says claim kept
}

graphics() {
  "$CLUSTER_DIR/gpu.sh" 8
  pod graphics 'echo scheduled' '{}' '{"resources": {"limits": {"nvidia.com/gpu": "1"}}}' | k apply -f -
  says graphics scheduled
}

many() {
  local i n=$1 start
  start=$(now_ms)
  for i in $(seq "$n"); do pod "many-$i" 'exec sleep 1000' '{"enableServiceLinks": false}' | jq -c '.metadata.labels.app = "many"'; done | k apply -f - > /dev/null
  k wait --for=condition=Ready pod -l app=many --timeout=120s
  note "$n pods ready $(seconds_since "$start") s after the first was sent"
}

gone() {
  local start
  start=$(now_ms)
  k delete pod -l app=many --wait=true
  note "removed in $(seconds_since "$start") s"
}

if [ "${1:-}" != --no-import ]; then "$CLUSTER_DIR/images.sh" check; fi
stage "namespace" begin
stage "a pod, ready, exec" first_pod
stage "service by name" service
stage "image volume" image_volume
stage "user namespace" user_namespace
stage "volume claim" claim
stage "graphics cards" graphics
stage "1 pod" many 1
stage "1 pod removed" gone
stage "40 pods" many 40
stage "40 pods removed" gone
stage "cleaned up" clean
