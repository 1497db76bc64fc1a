# The doors of the house. `make` alone prints them.
PYTHON ?= python3
BIN := .venv/bin
export PATH := $(CURDIR)/$(BIN):$(PATH)
export DO_NOT_TRACK := 1
TWO_WORKERS := -n 2 --dist loadgroup

help:  ## print the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## /{printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(BIN)/.installed  ## make .venv and install the locked dependencies

$(BIN)/.installed: requirements.lock pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check -r requirements.lock
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps -e .
	@touch $@

run: setup  ## run the whole pipeline and print the table of policies
	dvc repro
	@posttrain summary

test: setup  ## run the tests
	pytest $(TWO_WORKERS)

lint: setup  ## ruff, mypy --strict and the import contracts
	ruff check .
	ruff format --check .
	mypy
	lint-imports

infra/vllm/.venv/.installed: infra/vllm/setup.sh infra/vllm/requirements-cpu.lock
	infra/vllm/setup.sh

test-vllm: setup infra/vllm/.venv/.installed  ## rollouts through real vLLM servers, on the default run's SFT model
	dvc repro train_sft
	pytest -s tests/real/test_vllm.py tests/real/test_vllm_lora.py

test-slurm: setup  ## jobs on a real SLURM, which is started on this machine for it (root on Debian 12)
	infra/slurm/dev_cluster.sh up && pytest tests/real/test_slurm*.py; code=$$?; infra/slurm/dev_cluster.sh down; exit $$code

test-k8s: setup  ## jobs on the Kubernetes cluster that KUBECONFIG names, with two GPUs or names of GPUs
	infra/kubernetes/test.sh

test-s3: setup  ## jobs that share no disk with the submitter, through a local S3 server
	pytest tests/real/test_s3.py

test-killed: setup  ## a training killed at any point, or dvc, or both: the next `dvc repro` reaches the same bytes
	pytest -m slow tests/smoke/test_killed.py

test-prefect: setup  ## deployments, nights, experiments, cancelled and killed runs on a real Prefect server and worker
	pytest $(TWO_WORKERS) -m 'slow or not slow' tests/real/test_prefect.py tests/flows/test_train_and_evaluate.py tests/flows/test_experiments.py tests/flows/test_nightly.py

test-processes: setup  ## training in two processes on this machine's CPU: every algorithm, DDP and FSDP, every way to die (10 minutes)
	pytest $(TWO_WORKERS) -m 'slow or not slow' tests/real/test_processes.py tests/algorithms/test_processes.py

FOLDER ?= data/models/sft
PORT ?= 8101
serve-vllm: setup infra/vllm/.venv/.installed  ## a vLLM server for rollouts (FOLDER=…, PORT=…), see infra/vllm/serve.sh
	posttrain export-served $(FOLDER) .posttrain/vllm/served
	infra/vllm/serve.sh .posttrain/vllm/served $(PORT)

SERVER_PORT ?= 4200
serve: setup  ## a Prefect server and a worker on this machine, with all deployments (SERVER_PORT=…); Ctrl-C ends them
	@exec python -m flows.serve --port $(SERVER_PORT)

bench: setup  ## seconds and peak memory of every stage, and speed against named peers
	python -m benchmarks.stages
	python -m benchmarks.rollout
	python -m benchmarks.against_trl
	python -m benchmarks.against_vllm
	python -m benchmarks.exactness
	python -m benchmarks.traces
	python -m benchmarks.traced_steps
	python -m benchmarks.memory
	python -m benchmarks.flow

JOBS ?= 1
seeds: setup  ## the pipeline over seeds, world seeds and the control arms, into reports/seeds.json (an hour; JOBS=2 half)
	python -m benchmarks.seeds --jobs $(JOBS)

resampling: setup  ## every way to resample over three seeds, into reports/resampling.json (two hours; JOBS=2 one)
	python -m benchmarks.resampling --jobs $(JOBS)

.PHONY: help setup run test lint bench seeds resampling test-vllm test-slurm test-k8s test-s3 test-killed test-prefect test-processes serve serve-vllm
.DEFAULT_GOAL := help
