#!/usr/bin/env bash
# Make infra/foreign/.venv: Inspect and lm-eval from requirements.lock, and Harbor for its models of ATIF alone, which
# load below the Python 3.12 that the rest of it needs.
set -euo pipefail
cd "$(dirname "$0")"
"${PYTHON:-python3}" -m venv .venv
.venv/bin/pip install --quiet --disable-pip-version-check --no-deps --no-compile --requirement requirements.lock
PIP_QUIET=1 .venv/bin/pip install --disable-pip-version-check --no-deps --no-compile --ignore-requires-python harbor==0.25.0
touch .venv/.installed
