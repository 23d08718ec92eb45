# Everything runs in a virtual environment of its own, made on first use.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: help demo test test-slow lint bench clean

help:  ## this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*##/\t/' | expand -t 12

demo: $(READY)  ## one aggregation under attack, with and without bucketing: a table and a picture
	@$(BIN)/python examples/demo.py

test: $(READY)  ## the fast tests and the doctests
	$(BIN)/python -m pytest

test-slow: $(READY)  ## the tests that take minutes
	$(BIN)/python -m pytest -m slow

lint: $(READY)  ## style, format, types
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

bench: $(READY)  ## speed and memory, as ratios to a floor, to plain torch and to byzfl
	$(BIN)/python benchmarks/bench.py

clean:  ## remove the environment and what the tools left
	rm -rf $(VENV) .bench .hypothesis .mypy_cache .pytest_cache .ruff_cache demo

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Byzantium needs Python 3.11 or newer; say make PYTHON=/path/to/python3.11")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	@touch $@
