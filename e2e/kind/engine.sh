#!/usr/bin/env bash
# Runs a command beside a container engine of its own: engine.sh COMMAND...
# Engine, containers, networks and rules of packets live in namespaces of their own, which end with the command; images stay
# in $GRPO_CACHE/kind/docker. The command finds `docker` and `kind`; it reaches no other network than the containers'.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/../setup/lib.sh"

KIND="$CACHE/kind"

CGROUP=grpo-kind

if [ "${1:-}" != --inside ]; then
  rc=0
  unshare --net --mount --pid --fork --kill-child --mount-proc --propagation private bash "${BASH_SOURCE[0]}" --inside "$@" &
  # It ignores other signals while its child works.
  trap 'kill -KILL $!' TERM INT
  wait $! || rc=$?
  # The groups of control do not end with the namespaces. Just after the end of a process its group may be busy.
  for pause in 0 1 2 4; do
    sleep "$pause"
    find /sys/fs/cgroup -depth -type d \( -path "/sys/fs/cgroup/$CGROUP*" -o -path "/sys/fs/cgroup/*/$CGROUP*" \) -exec rmdir {} + 2> /dev/null || true
    compgen -G "/sys/fs/cgroup/*/$CGROUP" > /dev/null || [ -e "/sys/fs/cgroup/$CGROUP" ] || break
  done
  exit "$rc"
fi
shift

mount -t tmpfs -o mode=755 tmpfs /run
ip link set lo up
# systemd in the nodes needs its own hierarchy of version 1, which only a process outside of containers may create.
if [ ! -e /sys/fs/cgroup/cgroup.controllers ] && [ ! -d /sys/fs/cgroup/systemd ]; then
  mkdir /sys/fs/cgroup/systemd
fi
if [ ! -e /sys/fs/cgroup/cgroup.controllers ] && ! mountpoint -q /sys/fs/cgroup/systemd; then
  mount -t cgroup -o none,name=systemd systemd /sys/fs/cgroup/systemd
fi
sysctl -qw net.ipv4.ip_forward=1

# Where the engine looks for its programs.
mkdir -p "$KIND/libexec" "$KIND/docker"
install -m 755 "$REPO/e2e/kind/runc.sh" "$KIND/libexec/runc-here"
export PATH="$KIND/bin:$KIND/engine/usr/bin:$KIND/engine/usr/sbin:$PATH" DOCKER_HOST=unix:///run/docker.sock
dockerd --data-root "$KIND/docker" --exec-root /run/docker --pidfile /run/docker.pid -H "$DOCKER_HOST" \
  --oom-score-adjust 0 --cgroup-parent "/$CGROUP" --add-runtime "here=$KIND/libexec/runc-here" --default-runtime here \
  > "$CACHE/logs/dockerd.log" 2>&1 < /dev/null &
engine=$!
for _ in $(seq 1 300); do
  ! docker info > /dev/null 2>&1 || break
  kill -0 "$engine" 2> /dev/null || { tail -n 30 "$CACHE/logs/dockerd.log" >&2; die "the container engine ended (log: $CACHE/logs/dockerd.log)"; }
  sleep 0.1
done
docker info > /dev/null
"$@"
