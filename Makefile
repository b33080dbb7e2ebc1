# The only commands CI runs. `make demo` and `make test` do all the set-up themselves.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
RUST_SRC := $(shell find src -name '*.rs' 2>/dev/null) Cargo.toml Cargo.lock

.PHONY: help demo test test-all test-rust test-python lint fmt loom bench docs all clean check-tools build

help:
	@echo "make demo   run the main job against a fault server on loopback"
	@echo "make test   Rust and Python tests"
	@echo "make lint   every linter and type check"
	@echo "make loom   model-check the concurrent core"
	@echo "make bench  the figures, beside their peers"
	@echo "make all    lint test loom demo"

check-tools:
	@command -v $(PYTHON) >/dev/null || { echo "stallwatch: missing $(PYTHON): install Python 3.11 or newer" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "stallwatch: $(PYTHON) is $$($(PYTHON) -V 2>&1); Python 3.11 or newer is needed (make PYTHON=...)" >&2; exit 1; }
	@command -v cargo >/dev/null || { echo "stallwatch: missing cargo: install a stable Rust toolchain (1.95 or newer)" >&2; exit 1; }
	@command -v cc >/dev/null || { echo "stallwatch: missing cc: install a C linker (gcc or clang)" >&2; exit 1; }

$(VENV)/.deps: pyproject.toml | check-tools
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install -q --disable-pip-version-check 'pip==26.3'
	@$(BIN)/python -m pip install -q --disable-pip-version-check --group dev
	@touch $@

$(VENV)/.build: $(VENV)/.deps $(RUST_SRC)
	@VIRTUAL_ENV=$(abspath $(VENV)) $(BIN)/maturin develop --release --quiet >/dev/null
	@touch $@

build: $(VENV)/.build

demo: build
	@$(BIN)/stallwatch demo

test: test-rust test-python

test-rust: check-tools
	cargo test --quiet

test-python: build
	$(BIN)/python -m pytest -q

lint: build
	cargo fmt --check
	cargo clippy --quiet --all-targets -- -D warnings
	PYO3_PYTHON=$(abspath $(BIN)/python) cargo clippy --quiet --all-targets --features python -- -D warnings
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m mypy.stubtest stallwatch._stallwatch
	$(BIN)/basedpyright --verifytypes stallwatch --ignoreexternal

fmt: build
	cargo fmt
	$(BIN)/ruff check --fix -q .
	$(BIN)/ruff format -q .

loom: check-tools
	RUSTFLAGS="--cfg loom" cargo test --quiet --release --lib --target-dir target/loom loom

all: lint test loom demo

clean:
	rm -rf target $(VENV)
