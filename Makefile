# Every target works from a fresh clone: what needs the environment makes it first.
PYTHON ?= python3
BIN := .venv/bin
DATA ?= .jobgate
ARGS ?=

.PHONY: help venv demo dev test test-alone test-together test-uncached check bench chaos
.DEFAULT_GOAL := help

help:  ## this list
	@sed -n 's/^\([a-z]*\):.*## */\1\t/p' Makefile | expand -t 10

venv: .venv/installed  ## the environment alone, in .venv/

.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=...")'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[test,otlp]'
	@touch $@

demo: venv  ## the whole story on a throw-away folder, in a minute or two
	$(BIN)/jobgate demo $(ARGS)

dev: venv  ## Temporal, a worker and the API on DATA (.jobgate), until Ctrl-C
	$(BIN)/jobgate dev --data $(DATA) $(ARGS)

# Three processes keep two cores busy: most tests wait for servers. What needs a quiet machine comes first, by itself.
ifeq ($(ARGS),)
test: test-alone test-together test-uncached  ## all tests, on real servers, and the workflow ones once more without a cache (ARGS: options of pytest)
else
test: venv
	$(BIN)/python -m pytest $(ARGS)
endif

test-alone: venv
	$(BIN)/python -m pytest -m "alone and not slow"

test-together: venv
	$(BIN)/python -m pytest -m "not slow and not alone" -n 3 --dist loadfile --no-loadscope-reorder

test-uncached: venv
	JOBGATE_TEST_CACHE_OFF=1 $(BIN)/python -m pytest tests/workflow -n 3 --dist loadfile

check: venv  ## format, lint, types, imports
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/pyright
	$(BIN)/lint-imports

bench: venv  ## measures against the bare SDK; writes bench-result.json
	$(BIN)/python -m tests.bench $(ARGS)

chaos: venv  ## a mixed load while processes are killed and frozen; writes chaos-report.json (ARGS="--seed 7 --seconds 30")
	$(BIN)/python -m tests.chaos $(ARGS)
