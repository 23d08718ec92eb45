# Everything runs in a virtual environment of its own, made on first use.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# cpu: torch without CUDA where PyTorch's index can be reached; cuda: as PyPI has it; or another index.
TORCH ?= cpu

FLWR ?= 1.42.0

.PHONY: help demo test test-slow test-flower lint docs rehearse rehearse-nvflare bench dist chromium clean

help:  ## this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*##/\t/' | expand -t 12

demo: $(READY)  ## seven rules under four attacks: a table and a report
	@$(BIN)/byzantium demo

# A process for each core, with one thread each: idle threads of torch wait in a loop and slow the others down.
test: $(READY) chromium  ## the fast tests and the doctests
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses=auto --maxprocesses=4 --dist=worksteal

test-slow: $(READY)  ## the tests that take minutes
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m slow --numprocesses=auto --maxprocesses=2 --dist=worksteal

# Other versions of flwr exclude what constraints.txt has: each has an environment of its own.
test-flower:  ## the tests of Flower's engine with another version of flwr, FLWR=1.42.0
	$(PYTHON) -m venv .venv-flwr-$(FLWR)
	grep '^torch==' constraints.txt > .venv-flwr-$(FLWR)/constraints.txt
	index=$$(.venv-flwr-$(FLWR)/bin/python scripts/torch_index.py '$(TORCH)') && .venv-flwr-$(FLWR)/bin/python -m pip install \
	--quiet --disable-pip-version-check --constraint .venv-flwr-$(FLWR)/constraints.txt $$index --editable . \
	'flwr[simulation]==$(FLWR)' matplotlib pandas hypothesis pytest
	OMP_NUM_THREADS=1 .venv-flwr-$(FLWR)/bin/python -m pytest tests/engines/flower

lint: $(READY)  ## style, format, types
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

docs: $(READY)  ## the documentation as a site: docs/_build/index.html
	$(BIN)/python -m sphinx --fail-on-warning --keep-going --quiet --builder html docs docs/_build
	@echo 'docs/_build/index.html'

# Ray listens on all addresses: the rehearsal has a network of its own, for which root is needed.
rehearse: $(READY)  ## strategies of Flower and ours with Byzantine clients: a table
	unshare -n -p -f --kill-child --mount-proc bash -c 'ip link set lo up && "$$@"' -- \
	$(CURDIR)/$(BIN)/python examples/flower/launch.py rehearsal --nodes 8

rehearse-nvflare: $(READY)  ## FLARE's FedAvg and ours with a Byzantine site: a table
	unshare -n -p -f --kill-child --mount-proc bash -c 'ip link set lo up && "$$@"' -- \
	$(CURDIR)/$(BIN)/python examples/nvflare/rehearsal.py

# The folder that the results are written into.
OUT ?= docs

bench: $(READY)  ## speed and memory, as ratios, on a quiet machine: docs/measured.md
	$(BIN)/python benchmarks/bench.py --out '$(OUT)'

dist: $(READY)  ## the source distribution and the wheel, in dist/
	$(BIN)/python -m build --no-isolation

# The tests of the report and of the site look at them in a real browser; without one they are skipped, and say so.
chromium:
	@{ command -v chromium || command -v chromium-browser || command -v google-chrome; } > /dev/null \
	|| { [ "$$(id -u)" = 0 ] && command -v apt-get > /dev/null && apt-get update -qq && apt-get install -y -qq chromium > /dev/null; } \
	|| echo 'No chromium, and no root to install it: the tests of the report and of the site will be skipped.' >&2

clean:  ## remove the environment and what the tools left
	rm -rf $(VENV) .venv-flwr-* docs/_build .bench .hypothesis .mypy_cache .pytest_cache .ruff_cache demo

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Byzantium needs Python 3.11 or newer; say make PYTHON=/path/to/python3.11")'
	$(PYTHON) -m venv $(VENV)
	index=$$($(BIN)/python scripts/torch_index.py '$(TORCH)') && $(BIN)/python -m pip install --quiet \
	--disable-pip-version-check --constraint constraints.txt $$index --editable '.[dev,flower-simulation,mlflow,nvflare,tensorboard,wandb]'
	@touch $@
