# `make demo` and `make test` work from a fresh clone: each makes .venv and installs what it needs.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test lint docs clean

demo: .venv/installed
	rm -rf runs/demo
	$(BIN)/federec train pfedrec --data tastes --rounds 60 --seed 0 --out runs/demo
	$(BIN)/federec recommend runs/demo --user 42 -k 5 --titles

test: .venv/installed-dev
	$(BIN)/python -m pytest -n 3 --dist worksteal

lint: .venv/installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: .venv/installed-dev
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

clean:
	rm -rf .venv site

.venv/bin/pip:
	$(PYTHON) -m venv .venv

.venv/installed: .venv/bin/pip pyproject.toml
	$(BIN)/pip install --quiet -e .
	touch $@

.venv/installed-dev: .venv/bin/pip pyproject.toml
	$(BIN)/pip install --quiet -e '.[dev]'
	touch $@ .venv/installed
