# Every target works from a fresh clone: it makes .venv and installs what it needs.
PYTHON ?= python3
BIN := .venv/bin
# The tests to run, such as `make quick TESTS=tests/methods`
TESTS ?= tests
# Tests start many processes: each would compile all modules anew where this is set
export PYTHONDONTWRITEBYTECODE =

.PHONY: demo test quick coverage lint docs site-check lock clean

demo: .venv/installed
	rm -rf runs/demo
	$(BIN)/federec train --data tastes --out runs/demo/default
	$(BIN)/federec recommend runs/demo/default --user 42 -k 5
	@echo "Beside it a control that learns nothing, under both protocols: only a leak can help it"
	$(BIN)/federec train negative-count --data tastes --rounds 40 --protocol clean --quiet --out runs/demo/clean > /dev/null
	$(BIN)/federec train negative-count --data tastes --rounds 40 --protocol paper --quiet --out runs/demo/paper > /dev/null
	$(BIN)/federec compare runs/demo/*

test: .venv/installed-dev
	$(BIN)/python -m pytest -n 3 --dist worksteal $(TESTS)

# The edit loop, four minutes on two cores: style, and the tests that neither start processes nor compile
quick: .venv/installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "not slow and not thorough" $(TESTS)

# Processes that tests start, and compiled kernels, are not measured
coverage: .venv/installed-dev
	$(BIN)/python -m pytest -n 3 --dist worksteal --cov --cov-report term --cov-report html $(TESTS)

lint: .venv/installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: .venv/installed-dev
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

# Opens every page of the documentation, reports, and the page that learns in Chromium, which must be installed
site-check: .venv/installed-site
	$(BIN)/python -m pytest -m slow tests/test_site.py tests/web/test_page.py tests/web/federation/test_tabs.py

# What deploy/Dockerfile installs, with hashes: for Linux on x86-64, Python 3.11, torch without GPU
lock: .venv/bin/pip
	$(BIN)/pip install --quiet uv
	echo hatchling | $(BIN)/uv pip compile pyproject.toml - --extra flower --generate-hashes --python-version 3.11 \
	    --python-platform x86_64-manylinux_2_28 --torch-backend cpu --no-header --no-annotate --quiet --upgrade \
	    --output-file deploy/requirements.lock

clean:
	rm -rf .venv site htmlcov .coverage

.venv/bin/pip:
	$(PYTHON) -m venv .venv

.venv/installed: .venv/bin/pip pyproject.toml
	$(BIN)/pip install --quiet -e '.[train]'
	touch $@

.venv/installed-dev: .venv/bin/pip pyproject.toml
	$(BIN)/pip install --quiet -e '.[dev]'
	touch $@ .venv/installed

.venv/installed-site: .venv/installed-dev
	$(BIN)/pip install --quiet -e '.[site]'
	touch $@
