# An OCI layout of images in the folder $LAYOUT: blobs and names. Sourced, not run.

# put_blob: standard input as a blob of the layout; prints "digest size".
put_blob() {
  local new sum
  new=$(mktemp "$LAYOUT/blobs/new.XXXXXX")
  sum=$(tee "$new" | sha256sum | cut -d' ' -f1)
  printf 'sha256:%s %s\n' "$sum" "$(stat -c %s "$new")"
  mv "$new" "$LAYOUT/blobs/sha256/$sum"
}

# put_reference TAG "DIGEST SIZE": enters this manifest as TAG into the layout's index.
put_reference() {
  jq -c --arg tag "$1" --arg digest "${2% *}" --argjson size "${2#* }" '
    .manifests |= [.[] | select(.annotations["org.opencontainers.image.ref.name"] != $tag)] + [{
      mediaType: "application/vnd.oci.image.manifest.v1+json", digest: $digest, size: $size,
      annotations: {"io.containerd.image.name": $tag, "org.opencontainers.image.ref.name": $tag}}]' "$LAYOUT/index.json" > "$LAYOUT/index.new"
  mv "$LAYOUT/index.new" "$LAYOUT/index.json"
}

# make_layout: creates an empty layout, unless one exists.
make_layout() {
  mkdir -p "$LAYOUT/blobs/sha256"
  [ -e "$LAYOUT/oci-layout" ] || printf '{"imageLayoutVersion":"1.0.0"}' > "$LAYOUT/oci-layout"
  [ -e "$LAYOUT/index.json" ] || printf '{"schemaVersion":2,"manifests":[]}' > "$LAYOUT/index.json"
}
