# Functions of bootstrap.sh and serve_host.sh: a Python, and its packages in $HOME_DIR/venv.
# Both set HOME_DIR and SOURCE, and `fail`. shellcheck shell=bash

# Amazon Linux 2023 has 3.9 as python3, and 3.11 and newer beside it.
find_python() {
  local candidate
  for candidate in python3.13 python3.12 python3.11 python3; do
    if command -v "$candidate" >/dev/null &&
      "$candidate" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
      command -v "$candidate"
      return
    fi
  done
  return 1
}

# install_packages FAMILY [S3-PREFIX OF WHEELS]
#
# The sources are used where they lie: installing them would need a build tool on every node.
install_packages() {
  local family=$1 wheels=${2:-} python requirements
  requirements="$SOURCE/node/requirements-$family.txt"
  [[ -f "$requirements" ]] || fail "family $family: no such list of requirements"
  python="$(find_python || true)"
  if [[ -z "$python" ]]; then
    echo "luma: installing Python 3.11" >&2
    if command -v dnf >/dev/null; then
      dnf install --quiet --assumeyes python3.11 >&2
    elif command -v apt-get >/dev/null; then
      apt-get update --quiet >&2 && apt-get install --quiet --yes python3.11 python3.11-venv >&2
    fi
    python="$(find_python)" || fail "no Python 3.11 or newer, and none could be installed"
  fi
  echo "luma: installing the packages of family $family with $python" >&2
  "$python" -m venv "$HOME_DIR/venv"
  local pip=("$HOME_DIR/venv/bin/python" -m pip install --quiet --no-input
    --disable-pip-version-check --retries 5
    --constraint "$SOURCE/constraints.txt" --requirement "$requirements")
  if [[ -n "$wheels" ]]; then
    mkdir -p "$HOME_DIR/wheels"
    aws s3 cp --only-show-errors --recursive "$wheels" "$HOME_DIR/wheels"
    pip+=(--no-index --find-links "$HOME_DIR/wheels")
  fi
  "${pip[@]}" >&2
  "$HOME_DIR/venv/bin/python" - "$SOURCE" <<'PYTHON'
import pathlib, sys, sysconfig
pathlib.Path(sysconfig.get_path("purelib"), "luma.pth").write_text(sys.argv[1] + "\n")
PYTHON
  # -I: a `runtime` of the folder that this happens to run in would be found first.
  "$HOME_DIR/venv/bin/python" -I -c 'import runtime.spec' || fail "the runtime does not import"
}
