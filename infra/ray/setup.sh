#!/usr/bin/env bash
# Make infra/ray/packages: Ray, beside the library's environment and not in it; PYTHONPATH shows them to a command.
set -euo pipefail
cd "$(dirname "$0")"
rm -rf packages
"${PYTHON:-../../.venv/bin/python}" -m pip install --quiet --disable-pip-version-check --no-deps --target packages --requirement requirements.lock
touch packages/.installed
