#!/usr/bin/env bash
# Make infra/trainers/verifiers/.venv and infra/trainers/openenv/.venv: packages that play our worlds, and whose worlds
# are played here, in environments of their own. POSTTRAIN_VERIFIERS_PYTHON is then infra/trainers/verifiers/.venv/bin/python.
# infra/trainers/verl/packages stand beside the library's environment: PYTHONPATH shows them to a command.
set -euo pipefail
cd "$(dirname "$0")"
for name in verifiers openenv; do
  "${PYTHON:-python3}" -m venv "$name/.venv"
  "$name/.venv/bin/pip" install --quiet --disable-pip-version-check --no-deps --no-compile --requirement "$name/requirements.lock"
  touch "$name/.venv/.installed"
done
rm -rf verl/packages
"$PWD/../../.venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps --target verl/packages --requirement verl/requirements.lock
touch verl/packages/.installed
