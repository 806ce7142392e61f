#!/usr/bin/env bash
# Checks the chart's monitoring with the real tools, without a cluster: promtool judges rules and jobs, and plays series
# to every alert, and parses the dashboards' queries; Grafana's own schema judges the dashboards.
#   check.sh [install]     install: only install Prometheus and its operator into the cache
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/../setup/lib.sh"

HERE="$REPO/e2e/monitoring"
CHART="$REPO/charts/grpo-operator/monitoring"
# Of the modules under tools/.
PROMETHEUS_VERSION=v0.316.0
OPERATOR_VERSION=v0.85.0
export GOFLAGS=-buildvcs=false

# Debian's Prometheus has no discovery of Kubernetes. Of the others this one is built without.
prometheus() {
  if [ -x "$CACHE/bin/promtool" ] && fresh prometheus "$PROMETHEUS_VERSION"; then note "as it was"; return; fi
  (cd "$HERE/tools/prometheus" && CGO_ENABLED=0 GOBIN="$CACHE/bin" go install -trimpath -ldflags "-s -w" \
    -tags netgo,remove_all_sd,enable_kubernetes_sd tool)
  stamp prometheus "$PROMETHEUS_VERSION"
}

# The operator, and the CRDs that its module has.
operator() {
  if [ -x "$CACHE/bin/prometheus-operator" ] && fresh prometheus-operator "$OPERATOR_VERSION"; then note "as it was"; return; fi
  local module
  cd "$HERE/tools/prometheus-operator"
  CGO_ENABLED=0 GOBIN="$CACHE/prometheus/build" go install -trimpath -ldflags "-s -w" tool
  mv "$CACHE/prometheus/build/operator" "$CACHE/bin/prometheus-operator"
  module=$(go list -m -f '{{.Dir}}' github.com/prometheus-operator/prometheus-operator)
  rm -rf "$CACHE/prometheus/crds"
  cp -r "$module/example/prometheus-operator-crd" "$CACHE/prometheus/crds"
  chmod -R u+w "$CACHE/prometheus/crds"
  stamp prometheus-operator "$OPERATOR_VERSION"
}

command -v go > /dev/null || die "go is needed to build Prometheus and its operator (https://go.dev/dl)"
stage "Prometheus $PROMETHEUS_VERSION" prometheus
stage "Prometheus' operator $OPERATOR_VERSION" operator
[ "${1:-}" != install ] || exit 0

promtool="$CACHE/bin/promtool"
"$promtool" check rules "$CHART/rules.yaml"
"$promtool" check config --syntax-only "$CHART/scrape.yaml"
"$promtool" test rules "$HERE/rules.test.yaml"
# promtool parses queries of rules only, so each query of a panel becomes a rule. JSON is YAML.
queries=$(mktemp)
trap 'rm -f "$queries"' EXIT
jq -s '[.[].panels[].targets[]?.expr | gsub("[$]__rate_interval"; "1m")] | to_entries
  | {groups: [{name: "dashboards", rules: map({record: "panel:query:\(.key)", expr: .value})}]}' \
  "$CHART"/dashboards/*.json > "$queries"
"$promtool" check rules "$queries"
(cd "$HERE/tools/dashboards" && go run . "$CHART"/dashboards/*.json)
