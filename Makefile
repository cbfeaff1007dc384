# Two commands matter: `make demo` shows what Outrider does, `make test` installs and runs every test.
VENV   ?= .venv
PYTHON ?= python3
BIN    := $(VENV)/bin
WORKERS ?= 2

.PHONY: demo test thorough sanitize lint format clean

$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

demo: $(VENV)/.installed
	@$(BIN)/python scripts/fetch_model.py
	@$(BIN)/python scripts/demo.py

test: $(VENV)/.installed
	$(BIN)/python -m pytest -q -n $(WORKERS) --dist worksteal
	$(BIN)/python scripts/fetch_model.py
	$(BIN)/python -m pytest -q -m 'real and not pair'

thorough: $(VENV)/.installed
	$(BIN)/python -m pytest -q -n $(WORKERS) --dist worksteal -m thorough

sanitize: $(VENV)/.installed
	$(BIN)/python scripts/sanitize.py

lint: $(VENV)/.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(VENV)/.installed
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache
