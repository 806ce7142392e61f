#!/usr/bin/env bash
# The image of kind's nodes: node-image.sh build|load REFERENCE
# build makes it a tar in $GRPO_CACHE/kind, and needs the package registries; load gives it to the container engine.
# As kind's own recipe (images/base and pkg/build/nodeimage of its module) does, but from what package registries have:
# Debian's packages, Go modules, and the files of kind's module. Kubernetes' own images, which kubeadm looks for, are made of the same
# parts, and lie in the node's containerd before it starts.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/../cluster/lib.sh"
. "$CLUSTER_DIR/layout.sh"

KIND="$CACHE/kind"
VERSION=$(sed -n 's/^KUBERNETES_VERSION=//p' "$REPO/e2e/setup/kubernetes.sh")
PROVISIONER=$(sed -n 's/^LOCAL_PATH_VERSION=//p' "$REPO/e2e/kind/parts.sh")
MODULE="sigs.k8s.io/kind@$(sed -n 's/^KIND_VERSION=//p' "$REPO/e2e/kind/parts.sh")"
# kind's list, ipset for kube-router, and Debian's network plugins in place of plugins of kind's own.
PACKAGES=systemd,conntrack,iptables,nftables,iproute2,ethtool,util-linux,mount,kmod,libseccomp2,bash,ca-certificates,curl,jq,procps,ipset,containernetworking-plugins
PAUSE=registry.k8s.io/pause:3.10
ROUTER=$(sed -n 's/^ *image: \(.*kube-router.*\)$/\1/p' "$REPO/e2e/kind/policies.yaml")

# root_files ROOT: a Debian system that boots in a container.
root_files() {
  local root=$1 kind unit
  kind=$(GOFLAGS=-mod=mod go mod download -json "$MODULE" | jq -r .Dir)
  mmdebstrap --quiet --variant=minbase --include="$PACKAGES" --dpkgopt='path-exclude=/usr/share/man/*' \
    --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-exclude=/usr/share/locale/*' bookworm "$root"
  cp -r --no-preserve=mode,ownership "$kind/images/base/files/." "$root/"
  chmod 755 "$root/usr/local/bin/"* "$root/kind/bin/"*
  for unit in multi-user.target.wants/\* local-fs.target.wants/\* sockets.target.wants/\*udev\* sockets.target.wants/\*initctl\* \
    basic.target.wants/\* sysinit.target.wants/systemd-tmpfiles-setup.service; do
    # shellcheck disable=SC2086
    rm -f "$root"/lib/systemd/system/$unit
  done
  rm -f "$root"/etc/systemd/system/*.wants/*
  echo "ReadKMsg=no" >> "$root/etc/systemd/journald.conf"
  ln -sf /usr/lib/systemd/systemd "$root/sbin/init"
  chroot "$root" systemctl enable kubelet.service containerd.service undo-mount-hacks.service
  chroot "$root" systemctl mask systemd-binfmt.service
  mkdir -p "$root/etc/kubernetes/manifests" "$root/kind/manifests" "$root/opt/cni"
  ln -s /usr/lib/cni "$root/opt/cni/bin"
}

# programs ROOT: containerd, kubelet and kubeadm.
programs() {
  local root=$1
  install -m 755 "$CACHE/bin/"{containerd,containerd-shim-runc-v2,ctr} "$root/usr/local/bin/"
  install -m 755 "$CACHE/bin/runc" "$root/usr/local/sbin/"
  install -m 755 "$CACHE/bin/"{kubelet,kubectl} "$KIND/bin/kubeadm" "$root/usr/bin/"
  printf '%s' "$VERSION" > "$root/kind/version"
  # A container cannot have a score below that of its node's containerd, where root may not lower scores.
  sed -i 's/restrict_oom_score_adj = false/restrict_oom_score_adj = true/' "$root/etc/containerd/config.toml"
  "$CACHE/bin/ctr" oci spec |
    jq '.hooks.createContainer += [{path: "/kind/bin/mount-product-files.sh"}] | del(.process.rlimits)' > "$root/etc/containerd/cri-base.json"
  # The template of the module's Go source is the manifest, but for two images and their placeholders.
  manifest "$root/kind/manifests/default-storage.yaml"
}

# manifest FILE: kind's own manifest of volumes, from its source.
manifest() {
  local source
  source=$(GOFLAGS=-mod=mod go mod download -json "$MODULE" | jq -r .Dir)/pkg/build/nodeimage/const_storage.go
  awk '/^const defaultStorageManifest = `/ { on = 1; next } on' "$source" | sed '$d' |
    sed -e "s|\` + storageProvisionerImage + \`|$(storage_image)|; s|\` + storageHelperImage + \`|$(storage_image)|" > "$1"
  [ "$(grep -c "$(storage_image)" "$1")" -ge 3 ] || die "kind's manifest of volumes has another form than expected"
}

storage_image() { echo "docker.io/kindest/local-path-provisioner:$PROVISIONER"; }

# images ROOT: Kubernetes' images, in the content store of the node's containerd; unpacked at their first use.
images() {
  local root=$1 work socket reference name base files server
  work=$(mktemp -d -p "$KIND")
  LAYOUT="$work/layout"
  make_layout
  mkdir -p "$work/files/usr/local/bin"
  cp "$CACHE/bin/"{kube-apiserver,kube-controller-manager,kube-scheduler,kube-proxy,etcd,coredns} \
    "$KIND/bin/"{local-path-provisioner,kube-router} "$work/files/usr/local/bin/"
  gcc -Os -static -s -o "$work/files/pause" "$REPO/e2e/cluster/images/pause.c"
  base=$(tar -c --numeric-owner -C "$root" --exclude=./kind . | put_blob)
  files=$(tar -c --owner=0 --group=0 -C "$work/files" . | put_blob)
  for reference in $("$KIND/bin/kubeadm" config images list --kubernetes-version "$VERSION") "$PAUSE" "$(storage_image)" "$ROUTER"; do
    name=${reference##*/}
    case "${name%%:*}" in
      coredns) image "$reference" /usr/local/bin/coredns ;;
      pause) image "$reference" /pause ;;
      *) image "$reference" ;;
    esac
  done
  socket="$work/containerd.sock"
  printf 'version = 3\nroot = "%s"\nstate = "%s"\ndisabled_plugins = ["io.containerd.grpc.v1.cri", "io.containerd.cri.v1.runtime", "io.containerd.cri.v1.images"]\n[grpc]\naddress = "%s"\n' \
    "$root/var/lib/containerd" "$work/state" "$socket" > "$work/containerd.toml"
  containerd --config "$work/containerd.toml" --log-level warn > "$work/log" 2>&1 &
  server=$!
  await 10 ctr -a "$socket" version
  tar -c -C "$LAYOUT" . | ctr -a "$socket" -n k8s.io images import --no-unpack --all-platforms - || { cat "$work/log"; kill "$server"; return 1; }
  kill "$server"
  wait "$server" || true
  rm -rf "$work"
}

# image REFERENCE [ENTRYPOINT]: an image of the common files, in the layout.
image() {
  local config manifest
  config=$(jq -cn --arg arch "$(dpkg --print-architecture)" --arg base "${base% *}" --arg files "${files% *}" --arg entry "${2:-}" '
    {architecture: $arch, os: "linux", rootfs: {type: "layers", diff_ids: [$base, $files]},
     config: ({Env: ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"]} + (if $entry == "" then {} else {Entrypoint: [$entry]} end))}' | put_blob)
  manifest=$(jq -cn --arg config "$config" --arg base "$base" --arg files "$files" '
    def blob($type): split(" ") | {mediaType: "application/vnd.oci.image.\($type)", digest: .[0], size: (.[1] | tonumber)};
    {schemaVersion: 2, mediaType: "application/vnd.oci.image.manifest.v1+json", config: ($config | blob("config.v1+json")),
     layers: [$base, $files | blob("layer.v1.tar")]}' | put_blob)
  put_reference "$1" "$manifest"
}

build() {
  local root hash
  hash=$(hash_of "${BASH_SOURCE[0]}" "$REPO/e2e/kind/parts.sh" "$CLUSTER_DIR/layout.sh" "$ROUTER" "$CACHE/stamps/go-kubernetes" "$CACHE/stamps/go-containerd" "$CACHE/stamps/go-runc" \
    "$CACHE/stamps/go-etcd" "$CACHE/stamps/go-coredns")
  if fresh kind-node "$hash" && [ -e "$KIND/node.tar" ]; then note "as it was"; return; fi
  # Of a build that was killed.
  rm -rf "$KIND"/tmp.*
  root=$(mktemp -d -p "$KIND")
  # shellcheck disable=SC2064
  trap "rm -rf '$root'" EXIT
  chmod 755 "$root"
  root_files "$root"
  programs "$root"
  images "$root"
  tar -c --numeric-owner -C "$root" . > "$KIND/node.tar.new"
  mv "$KIND/node.tar.new" "$KIND/node.tar"
  note "$(du -sh "$KIND/node.tar" | cut -f1)"
  stamp kind-node "$hash"
}

# load REFERENCE: gives the image to the engine, unless it has it.
load() {
  local digest
  digest=$(cat "$CACHE/stamps/kind-node")
  if [ "$(docker image inspect --format '{{index .Config.Labels "dev.grpo.node"}}' "$1" 2> /dev/null)" = "$digest" ]; then
    note "as it was"
    return
  fi
  docker import --change 'ENV container=docker' --change "LABEL dev.grpo.node=$digest" \
    --change 'ENTRYPOINT ["/usr/local/bin/entrypoint", "/sbin/init"]' "$KIND/node.tar" "$1"
}

case "${1:-}" in
  build) stage "node image" build ;;
  load) stage "node image to the engine" load "${2:?usage: node-image.sh load REFERENCE}" ;;
  *) die "usage: node-image.sh build|load REFERENCE" ;;
esac
