# Everything a bare machine needs: python3 and make. Each target sets up what it uses.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet -c constraints.txt

.PHONY: demo test kernels check faults processors bench browser proxies clean

demo: $(VENV)/.ready
	$(BIN)/regard demo --output build/demo

test: check browser proxies
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal
	$(MAKE) kernels

# Kernels of GPUs, on a processor: Triton's interpreter runs them, in a process that knows of it from the start.
kernels: $(VENV)/.ready-dev
	@if $(PIP) triton; then OMP_NUM_THREADS=1 TRITON_INTERPRET=1 $(BIN)/python -m pytest -n 2 tests/kernels; \
	else echo "no Triton for this machine: the kernels of GPUs were not tested"; fi

check: $(VENV)/.ready-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# The long counts of docs/reliability.md; about an hour on two cores.
faults: $(VENV)/.ready-dev
	REGARD_FAULT_COUNT=200 OMP_NUM_THREADS=1 $(BIN)/python -m pytest --timeout 7200 -n 2 tests/faults \
		tests/unit/inference/test_inference_search.py tests/unit/data

# Compiled products at every level of instructions that this CPU or an emulator has (Debian: qemu-user, and
# g++-aarch64-linux-gnu for ARM's levels), as a table; levels that nothing here can run are named.
processors: $(VENV)/.ready-dev
	$(BIN)/python tests/processors/run.py
	REGARD_FAULT_COUNT=1 OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 tests/unit/inference/test_inference_levels.py

bench: $(VENV)/.ready-dev
	$(BIN)/regard bench translate --shape small
	$(BIN)/regard bench translate --shape base
	$(BIN)/regard bench train
	$(BIN)/python bench/serve_clients.py

# The page is tested in the distribution's own Chromium; where none can be installed, those tests say so and skip.
browser:
	@command -v chromium >/dev/null || command -v chromium-browser >/dev/null || \
		{ apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium; } \
		>/dev/null 2>&1 || echo "no Chromium here, and none could be installed: the page's tests will be skipped"

# The server is tested behind real proxies.
proxies:
	@command -v nginx >/dev/null && command -v caddy >/dev/null && command -v openssl >/dev/null || \
		{ apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends nginx-light caddy openssl; } \
		>/dev/null 2>&1 || echo "nginx, caddy or openssl is missing, and could not be installed: tests behind them will be skipped"

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV) || { echo "python3 lacks venv: install it (Debian: apt-get install python3-venv)"; exit 1; }

# torch is pinned before anything else asks for it, so that no other build is ever resolved.
$(VENV)/.ready: $(VENV)/bin/python pyproject.toml constraints.txt
	$(PIP) torch
	$(PIP) -e .
	touch $@

$(VENV)/.ready-dev: $(VENV)/.ready
	$(PIP) -e ".[dev]"
	touch $@

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
