# `make demo` and `make test` need git, make and Python 3.11 or later; everything else they install.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
WORKERS ?= 2

.PHONY: install demo test test-fast test-all lint

install: $(VENV)/.installed
$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e .
	touch $@

$(VENV)/.installed-test: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[test]'
	touch $@

demo: $(VENV)/.installed
	$(BIN)/bisector demo

lint: $(VENV)/.installed-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

test-fast: $(VENV)/.installed-test
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -m "not trains and not slow"

test: $(VENV)/.installed-test lint
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -m "not slow"

test-all: $(VENV)/.installed-test lint
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal
