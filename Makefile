# `make demo` and `make test` need nothing but Python >= 3.11: they set up .venv by themselves.
BIN := .venv/bin
UNIT := systemd/tiercache@.service

.PHONY: help demo test test-all lint format lock setup clean

help:
	@echo "make demo      mount a bucket from a local server and train on it"
	@echo "make test      quick tests;  make test-all: all of them"
	@echo "make lint      format, style, types, import rules, systemd unit"
	@echo "make format    rewrite what lint would complain about"
	@echo "make lock      pin the newest allowed dependencies"
	@echo "make clean     remove .venv and everything generated"

setup:
	@scripts/setup.sh

demo: setup
	$(BIN)/tiercache demo

# Each mount is processes of its own, which need not compile the modules anew.
unexport PYTHONDONTWRITEBYTECODE

test: setup
	$(BIN)/pytest -m "not slow"

test-all: setup
	$(BIN)/pytest

lint: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	scripts/verify-unit.sh $(UNIT)

format: setup
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

lock: setup
	scripts/lock.sh

clean:
	rm -rf .venv build dist .coverage .pytest_cache .mypy_cache .ruff_cache .hypothesis \
	    .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
