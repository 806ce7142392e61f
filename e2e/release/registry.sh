# A registry on this machine (distribution, from Go's module proxy), which the local cluster's node pulls from. Sourced
# after cluster/lib.sh by the test of a release and the test of the book.

DISTRIBUTION=v3.1.2
REGISTRY="$HOST_IP:5000"

# registry_program: built from Go's module proxy, once.
registry_program() {
  if fresh registry "$DISTRIBUTION" && [ -x "$CACHE/bin/registry" ]; then note "as it was"; return; fi
  GOBIN="$CACHE/bin" CGO_ENABLED=0 go install "github.com/distribution/distribution/v3/cmd/registry@$DISTRIBUTION"
  stamp registry "$DISTRIBUTION"
}

# serve: the registry, empty, until stop.
serve() {
  grep -q certs.d "$RUN/containerd.toml" || die "the cluster was started by an older version, which knows no registry on this machine: make down"
  rm -rf "$RUN/registry"
  mkdir -p "$RUN/registry" "$RUN/certs.d/$REGISTRY"
  printf 'version: 0.1\nstorage: {filesystem: {rootdirectory: %s}}\nhttp: {addr: "%s"}\n' "$RUN/registry" "$REGISTRY" > "$RUN/registry.yaml"
  printf 'server = "http://%s"\n[host."http://%s"]\n  capabilities = ["pull", "resolve"]\n' "$REGISTRY" "$REGISTRY" > "$RUN/certs.d/$REGISTRY/hosts.toml"
  "$CACHE/bin/registry" serve "$RUN/registry.yaml" > "$RUN/logs/registry.log" 2>&1 &
  SERVER=$!
  await 20 curl --silent --fail "http://$REGISTRY/v2/"
}

# stop: ends the registry, if it was started, and removes its images.
stop() {
  [ -z "${SERVER:-}" ] || kill "$SERVER" 2> /dev/null || true
  rm -rf "$RUN/registry"
}

# remove_operator: removes the chart and its CRDs, so that nothing of the source tree is left in the cluster.
remove_operator() {
  helm uninstall grpo-operator --namespace grpo-system --wait
  kube delete --wait -f "$REPO/charts/grpo-operator/crds"
  kube annotate namespace grpo-system grpo.dev/operator-image-
  kube --namespace grpo-system wait --for=delete pod --all --timeout=120s
}
