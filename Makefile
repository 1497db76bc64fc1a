# `make` alone prints the targets.
PYTHON ?= python3
BIN := .venv/bin
export PATH := $(CURDIR)/$(BIN):$(PATH)
export DO_NOT_TRACK := 1

help:  ## print the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## /{printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(BIN)/.installed  ## make .venv and install the locked dependencies

$(BIN)/.installed: requirements.lock pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check -r requirements.lock
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps -e .
	@touch $@

run: setup  ## run the whole pipeline and print the table of policies
	@posttrain run

demo: setup  ## the whole pipeline in small, in the toy world, in .posttrain/demo
	@posttrain demo

test: setup  ## run the tests; NEEDS=slurm (k8s, s3, vllm, prefect, browser, foreign, trainers, worlds, provenance, processes, killed, pretrained, llamacpp, keys, large, ray): those of real components
	$(if $(NEEDS),begin=$$(date +%s) && .ci/suite $(NEEDS) && $(PYTHON) .ci/suites.py green $(NEEDS) $$(($$(date +%s) - begin)),pytest -n 2 --dist loadgroup)

test-all:  ## lint, the tests and every suite of real components, as .ci/run without leaving any out
	.ci/run --all

lint: setup  ## ruff, mypy --strict and the import contracts
	ruff check .
	ruff format --check .
	mypy
	lint-imports

infra/vllm/.venv/.installed: infra/vllm/setup.sh infra/vllm/requirements-cpu.lock
	infra/vllm/setup.sh

infra/llamacpp/build/.installed: infra/llamacpp/setup.sh infra/llamacpp/requirements.lock $(BIN)/.installed
	infra/llamacpp/setup.sh

infra/foreign/.venv/.installed: infra/foreign/setup.sh infra/foreign/requirements.lock
	infra/foreign/setup.sh

infra/trainers/verl/packages/.installed: infra/trainers/setup.sh infra/trainers/verifiers/requirements.lock infra/trainers/openenv/requirements.lock infra/trainers/verl/requirements.lock $(BIN)/.installed
	infra/trainers/setup.sh

infra/worlds/packages/.installed: infra/worlds/setup.sh infra/worlds/requirements.lock $(BIN)/.installed
	infra/worlds/setup.sh

infra/ray/packages/.installed: infra/ray/setup.sh infra/ray/requirements.lock $(BIN)/.installed
	infra/ray/setup.sh

FOLDER ?= data/models/sft
PORT ?= 8101
serve-vllm: setup infra/vllm/.venv/.installed  ## a vLLM server for rollouts (FOLDER=…, PORT=…), see infra/vllm/serve.sh
	posttrain export-served $(FOLDER) .posttrain/vllm/served
	infra/vllm/serve.sh .posttrain/vllm/served $(PORT)

DASHBOARD_PORT ?= 0
dashboard: setup  ## all branches, in a browser (DASHBOARD_PORT=…, any free one); Ctrl-C ends it
	@exec posttrain dashboard --port $(DASHBOARD_PORT)

SERVER_PORT ?= 4200
serve: setup  ## a Prefect server and a worker on this machine, with all deployments (SERVER_PORT=…); Ctrl-C ends them
	@exec python -m flows.serve --port $(SERVER_PORT)

bench: setup  ## a GRPO step against TRL, and what the flow adds to DVC
	python -m benchmarks.against_trl
	python -m benchmarks.flow

JOBS ?= 1
seeds: setup  ## the pipeline over seeds, unseen worlds and control arms (experiments/seeds.yaml; JOBS=2 at a time)
	python -m flows.experiments experiments/seeds.yaml --beside $(JOBS)

PLAN ?= experiments/hard.yaml
experiments: setup  ## the experiments of a file (PLAN=experiments/hard.yaml): overrides times seeds, and their verdicts
	python -m flows.experiments $(PLAN) --beside $(JOBS)

pretrained: setup  ## a pretrained 135M model through the whole graph, into reports/pretrained.json (an hour)
	python -m benchmarks.pretrained

gpu:  ## what a machine with one CUDA GPU can show, in parts, into reports/gpu (15 minutes; docs/gpu.md)
	$(PYTHON) -m benchmarks.gpu

.PHONY: help setup run demo test test-all lint bench dashboard seeds experiments pretrained gpu serve serve-vllm
.DEFAULT_GOAL := help
