# Shared by the set-up and cluster scripts: the path of the cache, timed stages, stamps. Sourced, not run.

CACHE="${GRPO_CACHE:-$HOME/.cache/grpo-operator}"
REPO="$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)"
mkdir -p "$CACHE/bin" "$CACHE/stamps" "$CACHE/logs"
export PATH="$CACHE/bin:$PATH:/usr/sbin:/sbin"

say() { printf '%s\n' "$*" >&2; }

die() { say "error: $*"; exit 1; }

# now_ms: milliseconds of wall clock.
now_ms() { date +%s%3N; }

# seconds_since START_MS: seconds with one digit.
seconds_since() { local d=$(($(now_ms) - $1)); printf '%d.%d' $((d / 1000)) $((d % 1000 / 100)); }

# stage NAME COMMAND...: runs the command and prints one line with its seconds. The command's output goes to a log file
# (printed after a failure); a command that calls `note TEXT` adds TEXT to the line.
stage() {
  local name=$1 start log rc=0
  shift
  start=$(now_ms)
  log="$CACHE/logs/${name//[^a-zA-Z0-9.-]/_}.log"
  NOTE_FILE="$log.note"
  : > "$NOTE_FILE"
  export NOTE_FILE
  [ ! -t 2 ] || printf '  ..     %s\r' "$name" >&2
  (set -euo pipefail; "$@") > "$log" 2>&1 &
  wait $! || rc=$?
  if [ "$rc" -ne 0 ]; then
    printf '%6ss  %-28s FAILED (log: %s)\n' "$(seconds_since "$start")" "$name" "$log" >&2
    tail -n 30 "$log" >&2
    return "$rc"
  fi
  printf '%6ss  %-28s %s\n' "$(seconds_since "$start")" "$name" "$(tail -n 1 "$NOTE_FILE")" >&2
}

note() { [ -z "${NOTE_FILE:-}" ] || printf '%s\n' "$*" >> "$NOTE_FILE"; }

# hash_of PATH-OR-TEXT...: one digest over the content of files and folders, and over other arguments as text.
hash_of() {
  local x
  for x in "$@"; do
    if [ -d "$x" ]; then
      (cd "$x" && find . -type f -print0 | LC_ALL=C sort -z | xargs -0r sha256sum)
    elif [ -f "$x" ]; then
      sha256sum < "$x"
    else
      printf '%s\n' "$x"
    fi
  done | sha256sum | cut -c1-24
}

# processor: this machine's, as images and releases name it.
processor() {
  case "$(uname -m)" in
    x86_64) echo amd64 ;;
    aarch64) echo arm64 ;;
    *) die "no release is made for $(uname -m)" ;;
  esac
}

# fresh NAME HASH: true when the stamp NAME was last written with HASH.
fresh() { [ "$(cat "$CACHE/stamps/$1" 2> /dev/null)" = "$2" ]; }

stamp() { printf '%s\n' "$2" > "$CACHE/stamps/$1"; }

# grader_site: the grader's Python packages, from the lists in rollout-image/grader.
grader_site() {
  local list="$REPO/rollout-image/grader/requirements.txt" site="$CACHE/grader-site" hash
  local tables="$REPO/rollout-image/grader/requirements-tables.txt"
  mkdir -p "$site"
  [ -e "$list" ] || return 0
  hash=$(hash_of "$list" "$tables")
  fresh grader-site "$hash" && return
  rm -rf "$site"
  grader_packages "$list" "$site"
  grader_packages "$tables" "$site/older"
  stamp grader-site "$hash"
}

# grader_packages LIST FOLDER: the packages of LIST, without their dependencies.
grader_packages() {
  python3 -m pip install --quiet --no-deps --no-compile --python-version 3.11 --only-binary=:all: --target "$2" -r "$1" ||
    "$CACHE/venv/bin/python" -m pip install --quiet --no-deps --no-compile --target "$2" -r "$1"
}
