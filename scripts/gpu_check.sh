#!/usr/bin/env bash
# Check and measure this project on the GPUs of this machine:
#
#     scripts/gpu_check.sh [OUT] [slices=1,2] [only=PATTERN] [minutes=4] [form=cpu]
#
# OUT (by default runs/gpu_check) gets results.json, tables.md for docs/performance.md, steps.png, and the logs. There are
# six slices, each of at most `minutes`, in order of worth; only= selects checks by a regular expression.
# The same command continues where it was stopped: what has passed is not run again. Without a GPU, or with form=cpu, a
# small form runs, which tries the script and measures nothing.
#
# `scripts/gpu_check.sh pack` writes the pure Python packages of this environment as wheels to build/gpu_check, for a
# machine that has torch 2.11 or later and torchvision, but neither these packages nor a network: take the folder along
# with the checkout. PYTHON=PROGRAM selects another Python than .venv's.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
own=$here/../.venv/bin/python
[[ -x $own ]] || own=python3
exec "${PYTHON:-$own}" "$here/gpu_check/run.py" "$@"
