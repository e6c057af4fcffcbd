# Every target works on a fresh Debian or Ubuntu: it installs what is missing first.
# PYTHON=/path/to/python3 picks the interpreter, WORKERS=N the number of test processes.
# ARGS="…" goes to pytest: make test ARGS="-k readdir -x". BENCH="…" goes to the bench: see python -m bench --help.

PYTHON ?= /usr/bin/python3
# Most tests wait for a mount or a server, so there are more processes than cores.
WORKERS ?= 4
ARGS ?=
BENCH ?= all
BIN := .venv/bin
# A file's tests stay in one process and share its servers and mounts.
PYTEST := $(BIN)/pytest -n $(WORKERS) --dist loadfile
export PYTHON
MAKEFLAGS += --no-print-directory

.DEFAULT_GOAL := help

.PHONY: help
help: ## say what there is
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-12s %s\n", $$1, $$2}' Makefile

.PHONY: demo
demo: system-run device .venv/.installed ## ingest the sample site, mount it as three identities, show what each sees
	@scripts/demo.sh

.PHONY: test
test: system-test device .venv/.installed ## run every test, those that mount in both modes
	$(PYTEST) $(ARGS)
	CHROMAFUSE_FAST=0 $(PYTEST) -m mount $(ARGS)

.PHONY: test-long
test-long: system-test device .venv/.installed ## run every test, the random ones with many more examples
	$(PYTEST) --hypothesis-profile=long --timeout=1800 $(ARGS)

.PHONY: test-trixie
test-trixie: ## run fast mode's tests on Debian 13, in a root of their own (debootstrap; as root)
	@scripts/test-trixie.sh $(ARGS)

.PHONY: test-gnu-grep
test-gnu-grep: system-gnu ## run GNU grep's own tests with a shim as grep (fetches its source by apt)
	@scripts/test-gnu-grep.sh

.PHONY: check
check: system-run .venv/.installed ## format, lint, types, and the tests that need no mount and no server (under a minute)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/pytest -q -n 2 -m "not mount and not chroma and not slow" $(ARGS)

.PHONY: fmt
fmt: .venv/.installed ## format the code and apply the safe fixes
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .

.PHONY: bench
bench: system-bench device .venv/.installed ## measure: BENCH="warm first --pages 1k", BENCH=--list; all by default
	$(BIN)/python -m bench $(BENCH)

.PHONY: bench-peers
bench-peers: .venv/.installed ## install what the bench compares with besides: Mirage (PyPI), just-bash (npm)
	$(BIN)/python -m bench.peers

.PHONY: bench-docs
bench-docs: system-bench device bench-peers ## measure everything again for the docs, write its tables and picture
	$(BIN)/python -m bench all --json docs/bench.json
	$(BIN)/python -m bench docs .

.PHONY: venv
venv: system-run .venv/.installed ## make .venv and nothing else

.PHONY: clean
clean: ## remove what the other targets made in the checkout
	rm -rf .venv build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis *.egg-info
	rm -f chromafuse/view/_fast*.so
	find chromafuse tests bench -name __pycache__ -type d -prune -exec rm -rf {} +

# -- what they stand on

.PHONY: system-run system-test system-gnu system-bench device
system-run:
	@scripts/bootstrap.sh run
system-test:
	@scripts/bootstrap.sh test
system-gnu:
	@scripts/bootstrap.sh gnu
system-bench:
	@scripts/bootstrap.sh bench
device:
	@scripts/bootstrap.sh device

# Installed again only when the description or the pins change; code is used in place.
.venv/.installed: pyproject.toml constraints.txt setup.py chromafuse/view/_fast.c
	@scripts/bootstrap.sh venv
