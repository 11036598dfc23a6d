# Spillway: every command a newcomer or CI needs. `make` alone lists them.

SHELL := /bin/bash
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

VENV := .venv/bin
DATA_DIR ?= .spillway
HTTP_PORT ?= 8080
GRPC_PORT ?= 50051
PG_PORT ?= 55432
TESTS ?= tests
WORKERS ?= auto

.PHONY: help
help:
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: install
install: ## make .venv with everything in it, and fetch Spark's Delta jars
	@scripts/install

.PHONY: demo
demo: install ## PostgreSQL, the service, a workload, a lake; compares every row; KEEP=1 stays up, KEEP=0 does not
	@$(VENV)/spillway demo $(if $(KEEP),$(if $(filter 0 no off,$(KEEP)),--no-keep,--keep))

.PHONY: test-setup
test-setup: install
	@PYTHONPATH=tests $(VENV)/python -m harness.servers
	@PYTHONPATH=tests $(VENV)/python -m harness.browser >/dev/null
	@PYTHONPATH=tests $(VENV)/python -m harness.jvm
	@PYTHONPATH=tests $(VENV)/python -m harness.go_programs
	@PYTHONPATH=tests $(VENV)/python -m harness.java_clients
	@PYTHONPATH=tests $(VENV)/python -m harness.iceberg_rest

# Its processes give each other what they have compiled, also where Python is told not to keep it.
PYTEST := PYTHONDONTWRITEBYTECODE= $(VENV)/pytest

.PHONY: test
test: test-setup ## what every change needs, against real PostgreSQL servers; TESTS and WORKERS may be set
	@$(PYTEST) --numprocesses $(WORKERS) -m 'not long' --durations=40 --durations-min=5 $(TESTS)

SHARE ?=
WITHIN ?=

.PHONY: test-long
test-long: test-setup ## depth: seeds, kills, all majors, table formats; SHARE=3/7 is a part of it, SHARE=today the day's; WITHIN, in seconds, begins no more after it
	@$(PYTEST) --numprocesses $(WORKERS) -m long $(if $(SHARE),--share $(SHARE)) $(if $(WITHIN),--within $(WITHIN)) $(TESTS)

.PHONY: serve
serve: install ## the service on loopback; DATA_DIR, HTTP_PORT, GRPC_PORT and PG_PORT may be set
	@SPILLWAY_AUTH=$${SPILLWAY_AUTH:-off} $(VENV)/spillway serve \
	  --data-dir $(DATA_DIR) --http-port $(HTTP_PORT) --grpc-port $(GRPC_PORT) \
	  --pg-port $(PG_PORT)

BENCH ?=

.PHONY: bench
bench: ## PostgreSQL's decoding and ours on the same WAL: docs/how-to/benchmark.md; options in BENCH
	@scripts/install --group compare
	@PYTHONPATH=.:tests SPILLWAY_JARS=$${SPILLWAY_JARS:-$${SPILLWAY_CACHE:-.cache}/jars} $(VENV)/python -m bench $(BENCH)

SEEDS ?= 20
STEPS ?= 2000
VERSIONS ?= 14 15 16 17 18

.PHONY: certify
certify: install ## random workloads by seed, ours beside PostgreSQL's; SEEDS, STEPS and VERSIONS may be set
	@PYTHONPATH=tests $(VENV)/python -m harness.certify --seeds $(SEEDS) --steps $(STEPS) --majors $(VERSIONS)

.PHONY: lint
lint: install ## ruff, mypy and cython-lint
	@$(VENV)/ruff check
	@$(VENV)/ruff format --check
	@$(VENV)/mypy
	@$(VENV)/mypy --config-file tests/mypy.ini
	@$(VENV)/mypy --config-file client/pyproject.toml
	@$(VENV)/mypy --config-file terraform/pyproject.toml --python-executable terraform/$(VENV)/python
	@PATH=$(CURDIR)/$(VENV):$$PATH cython-lint services/spillway/_kernels

.PHONY: proto
proto: install ## generate the gRPC modules from proto/
	@$(VENV)/python scripts/generate_proto.py

.PHONY: openapi
openapi: install ## write the REST contract to openapi/
	@$(VENV)/python -m spillway.slot_manager.openapi > openapi/spillway-v1.json

.PHONY: clean
clean: ## delete what was built; downloads in .cache stay
	@rm -rf .venv terraform/.venv build dist .bench .mypy_cache .ruff_cache .pytest_cache .hypothesis .spillway spark-warehouse
	@find services/spillway/_kernels -name '*.so' -delete
	@find . -name __pycache__ -type d -not -path './.cache/*' -prune -exec rm -rf {} +
	@echo "clean: done; delete .cache as well to download everything again"
