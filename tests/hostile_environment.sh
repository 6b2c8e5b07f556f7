#!/bin/sh
# Run the tests where nothing is as on a developer's machine:
#
#   tests/hostile_environment.sh                        # all of them
#   tests/hostile_environment.sh -m "not slow" -n 2     # arguments are pytest's
#   SEED=7 tests/hostile_environment.sh tests/mx        # in the order of an earlier run
#
# A copy of the tree, in a folder whose name has spaces, belongs to a user who is not root and has no home; HOME, USER
# and the XDG folders are unset, TMPDIR has spaces, the locale is C, the umask is 077, no byte code is written, and the
# order is random. Started by anyone but root it keeps the user.
#
#   PYTHON   an interpreter that has the test dependencies; the default is .venv/bin/python
#   SEED     of the order; drawn, and printed, by default
#   RUN_AS   the number of the user to become; the default is nobody's

set -eu

# In a mount namespace of its own, so that reveal() is undone with the last process.
if [ "$(id -u)" -eq 0 ] && [ -z "${IN_NAMESPACE:-}" ] && unshare --mount true 2>/dev/null; then
  IN_NAMESPACE=1 exec unshare --mount "$0" "$@"
fi

umask 077
root=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd -P)
python=${PYTHON:-$root/.venv/bin/python}
seed=${SEED:-$(date +%s)}
user=${RUN_AS:-$(id -u nobody)}
become="setpriv --reuid=$user --regid=$user --clear-groups --no-new-privs"
triton=${MXGEMM_TRITON36:-$root/.cache/triton36}
folder=$(mktemp -d "${TMPDIR:-/tmp}/hostile to mxgemm XXXXXX")
trap 'chmod -R u+w "$folder" && rm -rf "$folder"' EXIT
trap 'exit 130' INT TERM

# Let everyone reach the interpreter where it lies in a folder of root's alone, like /root: nothing else shows there.
reveal() {
  base=$("$python" -c 'import sys; print(sys.base_prefix)')
  closed='' above=$base
  while [ "$above" != / ]; do
    $become test -x "$above" || closed=$above
    above=$(dirname "$above")
  done
  [ -n "$closed" ] && [ -n "${IN_NAMESPACE:-}" ] || return 0
  mkdir "$folder/interpreter"
  mount --bind "$base" "$folder/interpreter"
  mount -t tmpfs -o mode=755 tmpfs "$closed"
  (umask 022 && mkdir -p "$base")
  mount --move "$folder/interpreter" "$base"
}

if [ "$(id -u)" -ne 0 ]; then
  echo "not started as root: the tests run as $(id -un)"
  become=
elif ! command -v setpriv >/dev/null; then
  echo "setpriv is not installed (apt install util-linux): the tests run as root"
  become=
elif ! { reveal && $become env "$python" -c "import torch"; }; then
  echo "user $user cannot run $python: the tests run as root"
  become=
fi

mkdir "$folder/check out" "$folder/temporary files"
cd "$root"
if git rev-parse --git-dir >/dev/null 2>&1; then
  git ls-files -z --cached --others --exclude-standard
else
  find . \( -name .venv -o -name .cache \) -prune -o -type f -print0
fi | tar --null --files-from - --ignore-failed-read -cf - | tar -C "$folder/check out" -xf -
[ -z "$become" ] || chown -R "$user:$user" "$folder"

cd "$folder/check out"
echo "SEED=$seed"
# shellcheck disable=SC2086  # $become is words
$become env -u HOME -u USER -u LOGNAME -u LANG -u LANGUAGE -u PYTHONUTF8 -u XDG_CACHE_HOME \
  -u XDG_CONFIG_HOME -u XDG_RUNTIME_DIR LC_ALL=C TMPDIR="$folder/temporary files" MXGEMM_TRITON36="$triton" \
  PYTHONPATH=. PYTHONDONTWRITEBYTECODE=1 "$python" -m pytest -p no:cacheprovider --shuffle "$seed" "$@"
