# Every target works from a fresh clone: it makes .venv and installs what it needs.
PYTHON ?= python3
BIN := .venv/bin
# The tests to run, such as `make quick TESTS=tests/methods`
TESTS ?= tests

.PHONY: demo test quick coverage lint docs lock clean

demo: .venv/installed
	rm -rf runs/demo
	$(BIN)/federec train pfedrec --data tastes --rounds 60 --seed 0 --out runs/demo
	$(BIN)/federec recommend runs/demo --user 42 -k 5 --titles

test: .venv/installed-dev
	$(BIN)/python -m pytest -n 3 --dist worksteal $(TESTS)

# The edit loop, under a minute on two cores: style, and the tests that neither start processes nor compile
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
	$(BIN)/pip install --quiet -e .
	touch $@

.venv/installed-dev: .venv/bin/pip pyproject.toml
	$(BIN)/pip install --quiet -e '.[dev]'
	touch $@ .venv/installed
