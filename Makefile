# SPDX-License-Identifier: MIT
# The README's commands; each target is one plain line that can be typed without make.
# PYTHON makes the environment, VENV says where it is: `make test VENV=/path/to/env`.
PYTHON ?= python3
VENV ?= .venv
DIST ?= dist
PROJECTS := pyproject.toml hookspecs/pyproject.toml $(wildcard plugins/*/pyproject.toml)

.DEFAULT_GOAL := help
.PHONY: help install run test lint types contracts bench wheels clean

help:  ## list these targets
	@sed -n 's/^\([a-z]*\):.*##/\1\t/p' Makefile | expand -t 12

install: $(VENV)/.installed  ## make or reuse the environment, install everything editable

$(VENV)/bin/pip:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: requirements.txt $(PROJECTS) | $(VENV)/bin/pip
	$(VENV)/bin/pip install -r requirements.txt
	@touch $@

run: install  ## serve the default model, and show a curl line that works
	$(VENV)/bin/tokenspeed serve

test: install  ## run every test
	$(VENV)/bin/pytest

lint: install  ## style and format
	$(VENV)/bin/ruff check . && $(VENV)/bin/ruff format --check .

types: install  ## mypy --strict
	$(VENV)/bin/mypy

contracts: install  ## who may import whom
	$(VENV)/bin/lint-imports

bench: install  ## the ratios of tests/benchmarks
	$(VENV)/bin/tokenspeed bench

wheels: install  ## build a wheel of every distribution into DIST (dist/)
	$(VENV)/bin/pip wheel --no-deps --no-build-isolation --wheel-dir $(DIST) $(dir $(PROJECTS))

clean:  ## remove the environment and what was built
	rm -rf .venv dist
