# The only commands CI runs. `make demo` and `make test` do all the set-up themselves.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# Every Python of pyenv that is new enough; `make test-all PYTHONS="python3.12 /opt/python/bin/python3"` names others.
PYTHONS ?= $(shell for python in "$$(pyenv root 2>/dev/null)"/versions/*/bin/python; do \
	"$$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo "$$python"; done)
RUST_SRC := $(shell find src -name '*.rs' 2>/dev/null) Cargo.toml Cargo.lock

.PHONY: help demo test test-all test-rust test-python lint fmt loom soak bench bench-quick figures all clean check-tools build

help:
	@echo "make demo   run the main job against a fault server on loopback"
	@echo "make test   Rust and Python tests"
	@echo "make lint   every linter and type check"
	@echo "make test-all  the same on every Python that pyenv has"
	@echo "make loom   model-check the concurrent core"
	@echo "make soak   minutes of random use, far from any test's patience"
	@echo "make bench  the figures, beside their peers; bench-quick for a look"
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

test-all: test-rust
	@failed=; for python in $(PYTHONS); do \
		version=$$("$$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])'); \
		echo "Python $$version"; \
		CARGO_TARGET_DIR=target/python-$$version $(MAKE) --no-print-directory test-python PYTHON="$$python" VENV=.venv-$$version \
			|| failed="$$failed $$version"; \
	done; test -z "$$failed" || { echo "stallwatch: tests fail on Python$$failed" >&2; exit 1; }

lint: build
	cargo fmt --check
	cargo clippy --quiet --all-targets -- -D warnings
	PYO3_PYTHON=$(abspath $(BIN)/python) cargo clippy --quiet --all-targets --features python -- -D warnings
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m mypy.stubtest stallwatch._stallwatch
	$(BIN)/basedpyright --pythonpath $(BIN)/python --level error tests/typing
	@# It looks for the package where the first `python` of PATH would.
	@PATH="$(abspath $(BIN)):$$PATH" $(BIN)/basedpyright --verifytypes stallwatch --ignoreexternal >target/types.txt || { cat target/types.txt >&2; exit 1; }

fmt: build
	cargo fmt
	$(BIN)/ruff check --fix -q .
	$(BIN)/ruff format -q .

loom: check-tools
	RUSTFLAGS="--cfg loom" cargo test --quiet --release --lib --target-dir target/loom loom

soak: build
	$(BIN)/python tests/soak_wheel.py --seconds 60

bench: build
	cargo bench --quiet
	$(BIN)/python -m pytest -c benches/pytest.ini benches -s --benchmark-json=benches/results/$$(date -u +%Y%m%dT%H%M%SZ).json
	@$(MAKE) --no-print-directory figures

bench-quick: build
	$(BIN)/python -m pytest -c benches/pytest.ini benches -s --quick --benchmark-json=benches/results/quick.json

figures: build
	@$(BIN)/python benches/report.py

all: lint test loom demo

clean:
	rm -rf target $(VENV) .venv-3.* python/stallwatch/*.so
