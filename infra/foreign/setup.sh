#!/usr/bin/env bash
# Make infra/foreign/.venv: Inspect and lm-eval from requirements.lock, and in its node_modules promptfoo from package-lock.json.
set -euo pipefail
cd "$(dirname "$0")"
"${PYTHON:-python3}" -m venv .venv
# What is optional is 1.1 GB, the programs of every provider, and is not in the lock either: of these promptfoo starts only with libsql's, which
# package.json names. Not `npm ci`, which refuses such a lock.
cp package.json package-lock.json .venv
npm install --prefix .venv --omit=optional --legacy-peer-deps --ignore-scripts --no-audit --no-fund --silent &
npm=$!
.venv/bin/pip install --quiet --disable-pip-version-check --no-deps --no-compile --requirement requirements.lock
wait "$npm"
touch .venv/.installed
