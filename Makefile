# make run    the study `quick` and its report          make check      format, lint, types, layers
# make test   every test that takes seconds             make test-slow  those that take minutes
#
# Both set up .venv first, once: they install again only when pyproject.toml or constraints.txt changes.

PYTHON ?= python3
BIN := .venv/bin
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

.PHONY: run test test-slow check clean

run: .venv/installed
	$(BIN)/growbench run

test: .venv/installed-dev
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m "not slow" --numprocesses auto

test-slow: .venv/installed-dev
	$(BIN)/python -m pytest -m slow

check: .venv/installed-dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

clean:
	rm -rf build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis

.venv/installed: pyproject.toml constraints.txt | $(BIN)/pip
	$(INSTALL) --editable .
	@touch $@

.venv/installed-dev: pyproject.toml constraints.txt | $(BIN)/pip
	$(INSTALL) --editable '.[dev]'
	@touch .venv/installed $@

$(BIN)/pip:
	@$(PYTHON) -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || \
	{ echo 'growbench needs Python 3.11 or newer with its venv module: install it, or name it as in `make run PYTHON=python3.12`.' >&2; exit 1; }
	$(PYTHON) -m venv .venv
