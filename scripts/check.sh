#!/usr/bin/env bash
# Every check, the same here and in CI, from any folder: scripts/check.sh [options of pytest]
# Needs uv, which installs the project and its tools into .venv first.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

if ! command -v uv >/dev/null; then
  echo "check.sh: uv is expected on PATH, but is not there. Hint: pip install uv" >&2
  exit 2
fi
export UV_COMPILE_BYTECODE=1 # once, and not in each process that a test starts: half the time of the whole suite
export PYRIGHT_PYTHON_IGNORE_WARNINGS=1 # it would ask the network for a newer version of itself

step() { # step NAME COMMAND...
  local name=$1 status=0
  shift
  echo "== $name: $*"
  "$@" || status=$?
  if ((status)); then
    echo "check.sh: $name failed with exit code $status: $*" >&2
    exit "$status"
  fi
}

step "format" uv run --group dev ruff format --check
step "lint" uv run --group dev ruff check
step "types" uv run --group dev pyright
step "docs" env NO_MKDOCS_2_WARNING=1 uv run --group dev mkdocs build --quiet -f docs/site/mkdocs.yml
# four at a time on two cores: many tests wait for a time limit or for another node
step "tests" uv run --group dev --extra dali pytest -n 4 "$@"
echo "check.sh: all passed"
