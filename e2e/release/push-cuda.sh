#!/usr/bin/env bash
# Builds the CUDA trainer's image from this checkout with Docker, and pushes it to REGISTRY/trainer-cuda:VERSION. It takes 20 GB of disk.
#   push-cuda.sh REGISTRY VERSION
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/../setup/lib.sh"

REGISTRY=${1:-}
VERSION=${2:-}
[ -n "$REGISTRY" ] && [ -n "$VERSION" ] || die "usage: make push-cuda REGISTRY=registry.example.com/grpo VERSION=0.1.0"
docker info > /dev/null 2>&1 || die "Docker is needed: trainer-image/Dockerfile.cuda begins with images of a registry"
IMAGE="$REGISTRY/trainer-cuda:$VERSION"

stage "image trainer-cuda" docker build -f "$REPO/trainer-image/Dockerfile.cuda" -t "$IMAGE" "$REPO"
stage "push trainer-cuda" docker push -q "$IMAGE"
