#!/usr/bin/env bash
# Make infra/vllm/.venv: vLLM for the CPU from the lock file, or the vllm package where there is an NVIDIA GPU.
set -euo pipefail
cd "$(dirname "$0")"
"${PYTHON:-python3}" -m venv .venv
if [[ ${DEVICE:-$(command -v nvidia-smi >/dev/null && echo cuda || echo cpu)} == cpu ]]; then
  pip() { .venv/bin/pip install --quiet --disable-pip-version-check "$@"; }
  pip --constraint requirements-cpu.lock torch  # with what it needs itself: PyPI's build for CUDA, which serves on a CPU as well, does not load without
  pip --no-deps --requirement requirements-cpu.lock
else
  .venv/bin/pip install --quiet --disable-pip-version-check vllm==0.32.0
fi
touch .venv/.installed
