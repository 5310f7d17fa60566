# Everything a bare machine needs: python3 and make. Each target sets up what it uses.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# Python compiles what it imports, which is a small part of what is installed, and keeps it: tests start many processes.
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet --no-compile -c constraints.txt
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test ready-to-test beside kernels check types faults processors bench packages clean

demo: $(VENV)/.ready
	$(BIN)/regard demo --output build/demo

# Tests wait now and then, for a disk, a page or another process: three at once keep two cores busy. What runs beside
# them is told at the end.
test:
	@$(MAKE) --no-print-directory -j2 ready-to-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	@mkdir -p build; $(MAKE) --no-print-directory beside >build/beside.log 2>&1 & beside=$$!; \
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest --workers 3; code=$$?; \
	wait $$beside || code=1; cat build/beside.log; exit $$code

ready-to-test: $(VENV)/.ready-dev packages
beside: types kernels

# Kernels of GPUs, on a processor: Triton's interpreter runs them, in a process that knows of it from the start. Triton
# has a folder of its own, so that other tests find the same packages before and after it is installed.
kernels: $(VENV)/.ready-dev
	@if test -d $(VENV)/triton || $(BIN)/python -c "import triton" 2>/dev/null || $(PIP) --target $(VENV)/triton triton; then \
		OMP_NUM_THREADS=1 TRITON_INTERPRET=1 PYTHONPATH=$(VENV)/triton $(BIN)/python -m pytest tests/kernels; \
	else echo "no Triton for this machine: the kernels of GPUs were not tested"; fi

check: $(VENV)/.ready-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	@$(MAKE) --no-print-directory types

types: $(VENV)/.ready-dev
	$(BIN)/mypy
	$(BIN)/lint-imports

# The long counts of docs/reliability.md; about an hour on two cores.
faults: $(VENV)/.ready-dev
	REGARD_FAULT_COUNT=200 OMP_NUM_THREADS=1 $(BIN)/python -m pytest --timeout 7200 --workers 2 tests/faults \
		tests/unit/search/test_search_beam.py tests/unit/data tests/unit/documents/test_documents_html.py \
		tests/recipes/test_recipe_runs.py tests/browser/test_lens_first_and_long.py
	REGARD_FAULT_COUNT=1 OMP_NUM_THREADS=1 $(BIN)/python -m pytest --timeout 7200 --workers 2 -m "full or hypothesis" tests/unit tests/parity
	REGARD_FAULT_COUNT=1 $(MAKE) --no-print-directory kernels

# Compiled products at every level of instructions that this CPU or an emulator has (Debian: qemu-user, and for the
# levels of the other architecture g++-aarch64-linux-gnu or g++-x86-64-linux-gnu), as a table; levels that nothing here
# can run are named.
processors: $(VENV)/.ready-dev
	$(BIN)/python tests/processors/run.py
	REGARD_FAULT_COUNT=1 OMP_NUM_THREADS=1 $(BIN)/python -m pytest --workers 2 tests/unit/runtime/test_runtime_levels.py

bench: $(VENV)/.ready-dev
	$(BIN)/regard bench translate --shape small
	$(BIN)/regard bench translate --shape base
	$(BIN)/regard bench train
	$(BIN)/python bench/serve_clients.py

# The page is tested in the distribution's own Chromium, and the server behind real proxies; where they cannot be
# installed, those tests say so and skip.
APT := apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends
packages:
	@command -v chromium >/dev/null || command -v chromium-browser >/dev/null || { $(APT) chromium; } >/dev/null 2>&1 || \
		echo "no Chromium here, and none could be installed: the page's tests will be skipped"
	@command -v nginx >/dev/null && command -v caddy >/dev/null && command -v openssl >/dev/null || \
		{ $(APT) nginx-light caddy openssl; } >/dev/null 2>&1 || \
		echo "nginx, caddy or openssl is missing, and could not be installed: tests behind them will be skipped"

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV) || { echo "python3 lacks venv: install it (Debian: apt-get install python3-venv)"; exit 1; }

# torch is pinned before anything else asks for it, so that no other build is ever resolved.
$(VENV)/.ready: $(VENV)/bin/python pyproject.toml constraints.txt
	$(PIP) torch
	$(PIP) -e .
	touch $@

$(VENV)/.ready-dev: $(VENV)/bin/python pyproject.toml constraints.txt
	$(PIP) torch
	$(PIP) -e ".[dev]"
	touch $(VENV)/.ready $@

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
