#!/usr/bin/env bash
# Make infra/foreign/.venv: Inspect and lm-eval from requirements.lock.
set -euo pipefail
cd "$(dirname "$0")"
"${PYTHON:-python3}" -m venv .venv
.venv/bin/pip install --quiet --disable-pip-version-check --no-deps --no-compile --requirement requirements.lock
touch .venv/.installed
