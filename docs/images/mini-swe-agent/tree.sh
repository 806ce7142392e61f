#!/usr/bin/env bash
# The files of the mini-swe-agent image: tree.sh FOLDER makes FOLDER/agent from PyPI and Debian packages. Needs Python 3 with
# pip, and Debian 12, whose Python 3.11 it takes: tasks may have an older one, or none.
#
#   docs/images/mini-swe-agent/tree.sh out && docker build -t registry.example.com/mini-swe-agent:2.4.6 -f docs/images/mini-swe-agent/Dockerfile out
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
. "$here/../agent-runtime.sh"

mkdir -p "${1:?tree.sh FOLDER}"
out=$(cd "$1" && pwd)
work=$(mktemp -d "$out/work.XXXXXX")
trap 'rm -rf "$work"' EXIT

agent="$work/agent"
mkdir -p "$agent/bin" "$agent/lib" "$agent/mini"
debian "$work/debian" libc6 libgcc-s1 zlib1g libexpat1 libssl3 libffi8 libuuid1 libbz2-1.0 liblzma5 \
  python3.11-minimal libpython3.11-minimal libpython3.11-stdlib
cp "$work/debian/usr/bin/python3.11" "$agent/bin/python3.11"
ln -s python3.11 "$agent/bin/python3"
cp "$work/debian/usr/share/doc/python3.11-minimal/copyright" "$agent/bin/python3.11.LICENSE"
# (Debian's sitecustomize is a link to /etc.)
rm -f "$work/debian/usr/lib/python3.11/sitecustomize.py"
cp -r "$work/debian/usr/lib/python3.11" "$agent/lib/python3.11"
libraries "$agent" "$work/debian" libc.so.6 libm.so.6 libdl.so.2 libpthread.so.0 libgcc_s.so.1 libz.so.1 libexpat.so.1 libssl.so.3 \
  libcrypto.so.3 libffi.so.8 libuuid.so.1 libbz2.so.1.0 liblzma.so.5 librt.so.1 libutil.so.1

# Without litellm and what else the command-line program wants (700 MB): run.py has a model class of its own.
python3 -m pip install --quiet --disable-pip-version-check --root-user-action=ignore --no-deps --target "$agent/mini/site" \
  --platform manylinux2014_x86_64 --python-version 3.11 --only-binary=:all: --requirement "$here/requirements.txt"
cp "$here/run.py" "$agent/mini/run.py"

private "$work" "$agent/bin/python3.11"
chmod -R a+rX "$agent"
rm -rf "$out/agent"
mv "$agent" "$out/agent"
