#!/usr/bin/env bash
# Run every check, the same here as in CI, from any folder: scripts/check.sh [options of pytest]
# Requires uv, which first installs the project and its tools into .venv.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

if ! command -v uv >/dev/null; then
  echo "check.sh: uv must be on PATH, but was not found. Hint: run 'pip install uv'." >&2
  exit 2
fi
export UV_COMPILE_BYTECODE=1 # compile once, not in each process that a test starts: halves the time of the suite
export PYRIGHT_PYTHON_IGNORE_WARNINGS=1 # do not look for a newer version on the network

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
step "docs" env NO_MKDOCS_2_WARNING=1 uv run --group dev mkdocs build -f docs/site/mkdocs.yml
# Run six tests at a time on two cores, because many tests wait for a time limit or for another node. A test that fails
# runs once more: thousands of them start processes that wait for each other, on a machine that others may use, too. The
# summary lists each RERUN.
step "tests" uv run --group dev pytest -n 6 --reruns 1 "$@"
echo "check.sh: all passed"
