#!/usr/bin/env bash
# Writes the task images' root file system to $1 unless it is there: Debian with Python and git, and nothing else.
set -euo pipefail
[ ! -f "$1" ] || exit 0
mmdebstrap --quiet --variant=essential --include=python3,git --aptopt='Apt::Install-Recommends "false"' \
  --dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/doc/*' \
  --dpkgopt='path-exclude=/usr/share/locale/*' bookworm "$1.new.tar"
mv "$1.new.tar" "$1"
