# Every target sets up .venv by itself: a fresh machine needs Python 3.11 or newer, make and git, nothing else.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: demo test lint wheel bounds study bench docs clean
.DEFAULT_GOAL := help

help:
	@echo "make demo    set up and run the whole job on a generated survey"
	@echo "make test    set up, lint, check types, try the wheel and run the tests"
	@echo "make lint    style and types only"
	@echo "make wheel   build the wheel, install it alone in a fresh environment, and run the demo and the README's Python"
	@echo "make bounds  the same with the lowest versions that pyproject.toml allows, and some tests"
	@echo "make study   the slower statistical studies; results go to docs/"
	@echo "make bench   time and memory against R survey, svy, rstan and NumPyro; the page is docs/benchmarks.md"
	@echo "make docs    regenerate the pages that are made from the code"

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "svysynth needs Python 3.11 or newer: make PYTHON=/path/to/python3.11"; exit 1; }
	$(PYTHON) -m venv --clear $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[files,numpyro,dask,dev]'
	@touch $(READY)

demo: $(READY)
	$(BIN)/svysynth demo

lint: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

wheel: $(READY)
	$(BIN)/python tests/wheel/wheel_alone.py

bounds: $(READY)
	$(BIN)/python tests/wheel/lower_bounds.py

test: lint wheel
	$(BIN)/pytest -n auto --dist loadfile

study: $(READY)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[study]'
	$(BIN)/python bench/real_files.py
	@failed=; \
	for program in bench/study_of_*.py; do \
	  echo "$(BIN)/python $$program"; $(BIN)/python $$program || failed="$$failed $$program"; \
	done; \
	$(BIN)/python -m pytest -n auto --run-study -m study || failed="$$failed pytest"; \
	test -z "$$failed" || { echo "These studies failed:$$failed"; exit 1; }

bench: $(READY)
	$(BIN)/python bench/run.py

docs: $(READY)
	$(BIN)/python docs/generate.py

clean:
	rm -rf $(VENV) svysynth-demo .pytest_cache .mypy_cache .ruff_cache
