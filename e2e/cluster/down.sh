#!/usr/bin/env bash
# Removes every trace of the local cluster; the images stay in the cache. down.sh [--quiet]
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

# end_holder: ends the first process of the cluster's namespaces, and with it all others, and all mounts.
end_holder() {
  local pid
  pid=$(holder) || return 0
  kill -KILL "$pid"
  while [ -e "/proc/$pid" ]; do sleep 0.05; done
}

# remove_cgroups: the groups of the pods, from the leaves up. Just after the end of a process its group may be busy.
remove_cgroups() {
  local try
  for try in 1 2 3 4 5 6 7 8 9 10; do
    find /sys/fs/cgroup -depth -type d -path "*/$CGROUP*" \( -path "/sys/fs/cgroup/*/$CGROUP" -o -path "*/$CGROUP/*" -o \
      -path "/sys/fs/cgroup/$CGROUP" \) -exec rmdir {} + 2> /dev/null || true
    compgen -G "/sys/fs/cgroup/*/$CGROUP" > /dev/null || return 0
    sleep "0.$try"
  done
  say "some cgroups are still busy: $(compgen -G "/sys/fs/cgroup/*/$CGROUP" | tr '\n' ' ')"
}

remove() {
  end_holder
  ip link del grpo-host 2> /dev/null || true
  remove_cgroups
  rm -rf "$RUN" "$CLUSTER_KUBECONFIG"
  rmdir /var/lib/cni 2> /dev/null || true
}

if uses_kind; then exec "$CLUSTER_DIR/kind.sh" down; fi
if [ "${1:-}" = --quiet ]; then remove; else stage "cluster removed" remove; fi
