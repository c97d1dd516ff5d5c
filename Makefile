# Every verb of the project. `make help` explains them; README.md needs only `make run` and `make test`.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.setup-stamp
STAMP_OF_RUN := $(VENV)/.run-stamp

COMMA := ,

.DEFAULT_GOAL := help
# Real S3 servers for tests, pinned. Go builds them once, in two to five minutes.
S3_SERVERS := build/s3-servers
VERSITYGW := github.com/versity/versitygw/cmd/versitygw@v1.8.0
MINIO := github.com/minio/minio@v0.0.0-20260212201848-7aac2a2c5b7c

# A path that mypy reads too, in place of a finder that it does not run.
EDITABLE := --config-settings editable_mode=compat --editable

# Compiled modules and rewritten tests are kept: compiling takes each worker of pytest and each process 4 seconds more.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: help setup run demo test test-fast test-all simulate test-s3 test-installation s3-servers check lint types imports proto proto-check docs wheel bench clean

help: ## Show this help
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-17s %s\n", $$1, $$2}'

setup: $(STAMP) ## Create .venv with Postdate and everything it can use, for tests and development

# $(call install,extras). Pip compiles modules in one process, which takes 20 seconds; here each core does. Some packages
# have files for other versions of Python, which do not compile.
define install
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Postdate needs Python 3.11 or later: make PYTHON=python3.12 $(MAKECMDGOALS)")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --no-compile --disable-pip-version-check --constraint constraints.txt $(EDITABLE) '.[$(1)]'
	@echo 'Compiling what was installed'
	@$(BIN)/python -m compileall -qq -j 0 $(VENV)/lib $(PACKAGES) || true
endef

$(STAMP): pyproject.toml constraints.txt
	$(call install,demo$(COMMA)s3$(COMMA)charts$(COMMA)dev)
	@touch $(STAMP_OF_RUN) $@

# What the service and a client take: an eighth of what all takes, in a quarter of the time.
$(STAMP_OF_RUN): pyproject.toml constraints.txt
	$(call install,demo)
	@touch $@

run: $(STAMP_OF_RUN) ## Set up what running takes, then start the service on embedded defaults (RocksDB in ./data)
	$(BIN)/postdate serve --config config/broker.conf $(OPTIONS)

demo: $(STAMP_OF_RUN) ## Show the main job, with a crash in the middle, in under a minute
	$(BIN)/postdate demo

# Three workers; what shares a Java process or a file shares a worker (tests/conftest.py). Half of the time is waiting for
# services and clients: on two cores, a third worker makes eight minutes of `make test` six, and 59 s of `make test-fast` 53.
WORKERS := 3
# Folders of tests in memory, where there is room, and none kept that passed. Where a disk is slow to forget what was synced to
# it, the units of the broker alone take 44 s instead of 116.
IN_MEMORY := --in-memory --override-ini tmp_path_retention_policy=failed
PYTEST = $(BIN)/pytest -n $(WORKERS) --dist loadgroup --no-loadscope-reorder $(IN_MEMORY)
PACKAGES := $(filter-out benchmarks,$(patsubst %/__init__.py,%,$(wildcard */__init__.py)))
ROOMS := $(PACKAGES) $(patsubst %/__init__.py,%,$(wildcard postdate/*/__init__.py))
ALONE_IN_ALL := not exhaustive and not installation and not s3_server and not java and not real_pulsar
RESULTS := build/test-all
# Counting lines and branches makes the tests of the tracker take seven tenths more of a processor, so it is asked for.
COVERED = $(if $(COVERAGE),--cov --cov-report=term)

test: setup ## Set up, then run the tests (under 8 minutes); ROOM=tracker runs those of one room
ifdef ROOM
	$(PYTEST) -m "$(ALONE_IN_ALL)" $(wildcard $(ROOM) postdate/$(ROOM)) $(foreach kind,unit property contract fault,$(wildcard tests/$(kind)/$(ROOM)))
else
	$(PYTEST) -m "$(ALONE_IN_ALL)"
endif

test-fast: setup ## Run what shows most mistakes within a minute: units, few examples of properties, contracts
	$(PYTEST) -m "not slow and $(ALONE_IN_ALL)" --hypothesis-profile fast tests/contract tests/property tests/unit $(PACKAGES)

test-all: setup s3-servers ## Run everything, also S3 servers, Spark and Pulsar; ALL=1 also what sees no change; COVERAGE=1 counts lines
	@mkdir -p $(RESULTS)
	$(PYTEST) --hypothesis-profile ci --durations-file=$(RESULTS)/durations.txt $(if $(ALL),--all-lanes) $(COVERED)

simulate: setup ## Run the whole service by seed, for long: SEEDS=10000; SEED=7 repeats one (OPTIONS=--help)
	$(BIN)/python tests/simulation/simulate.py $(if $(SEED),--seed $(SEED),--seeds $(or $(SEEDS),1000)) $(if $(VARIANT),--variant $(VARIANT)) $(OPTIONS)

test-s3: setup s3-servers ## Run the storage suite against versitygw and MinIO, which it starts and stops (needs Go once)
	$(BIN)/pytest -m s3_server

test-installation: setup ## Install the wheel with each extra, the image and the unit, each alone (needs a package index)
	$(PYTEST) -m installation --all-lanes

s3-servers: $(S3_SERVERS)/versitygw $(S3_SERVERS)/minio ## Build the S3 servers of the tests (needs Go)

# CGO is off so that a C compiler is not needed. Without Go the tests are skipped, except in CI.
define go_install
	@if command -v go > /dev/null; then mkdir -p $(S3_SERVERS) && CGO_ENABLED=0 GOBIN=$(abspath $(S3_SERVERS)) go install $(1); \
	elif [ -n "$$CI" ]; then echo "go is missing, which CI must have" >&2; exit 1; \
	else echo "go is missing: the tests against a real S3 server are skipped" >&2; fi
endef

$(S3_SERVERS)/versitygw:
	$(call go_install,$(VERSITYGW))

$(S3_SERVERS)/minio:
	$(call go_install,$(MINIO))

check: setup lint types imports proto-check docs test ## Check lint, types, imports, schemas and documentation, and run make test; CI runs make test-all instead of it

lint: setup ## Lint and check the format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: setup ## Check the types strictly
	$(BIN)/mypy

# $(call toml,folders of packages): their names as a list
toml = [$(patsubst %,\"%\"$(COMMA),$(subst /,.,$(1)))]
imports: setup ## Check that imports point one way
	@mkdir -p build
	awk '1; /^\[tool.importlinter\]/ { print "root_packages = $(call toml,$(PACKAGES))" }; \
		/^type = "acyclic_siblings"/ { print "ancestors = $(call toml,$(ROOMS))" }' pyproject.toml > build/imports.toml
	$(BIN)/lint-imports --config build/imports.toml

# $(call protoc,folder below which the generated packages are written)
define protoc
	$(BIN)/python -m grpc_tools.protoc -I proto --python_out=$(1)/snapshot_storage/pb --pyi_out=$(1)/snapshot_storage/pb proto/delayed_message_index_bucket.proto
	$(BIN)/python -m grpc_tools.protoc -I managed_ledger/pb=proto --python_out=$(1) --pyi_out=$(1) proto/pulsar_metadata.proto
	$(BIN)/python -m grpc_tools.protoc -I proto -I managed_ledger/pb=proto --python_out=$(1)/postdate/broker/protocol/pb --pyi_out=$(1)/postdate/broker/protocol/pb proto/pulsar_api.proto
endef

proto: setup ## Generate the Python code of proto/*.proto
	$(call protoc,.)

proto-check: setup ## Check that generating again changes nothing
	@rm -rf build/proto && mkdir -p build/proto/snapshot_storage/pb build/proto/managed_ledger/pb build/proto/postdate/broker/protocol/pb
	$(call protoc,build/proto)
	diff -r -x __init__.py -x __pycache__ build/proto/snapshot_storage/pb snapshot_storage/pb
	diff -r -x __init__.py -x __pycache__ build/proto/managed_ledger/pb managed_ledger/pb
	diff -r -x __init__.py -x __pycache__ build/proto/postdate/broker/protocol/pb postdate/broker/protocol/pb

docs: setup ## Build the documentation into build/docs; a link that leads nowhere is an error
	$(BIN)/mkdocs build

# What a build leaves in build/lib would be in the next wheel.
wheel: setup ## Build the wheel into dist/
	rm -rf build/lib build/bdist.* dist
	$(BIN)/pip wheel --quiet --no-deps --disable-pip-version-check --wheel-dir dist .
	rm -rf build/lib build/bdist.*

bench: setup ## Compare with a real Pulsar, side by side (needs Java 17 and Maven)
	$(BIN)/python -m benchmarks

clean: ## Remove the virtual environment and every cache; never ./data
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
