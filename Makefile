# `make demo` and `make test` need Python 3.10+ and make, nothing else: each makes its own virtual environment.
PYTHON ?= python3
DEMO   := .venv-demo
VENV   := .venv
JOBS   ?= auto
PIP    := -m pip --disable-pip-version-check install --quiet --constraint constraints.txt

.PHONY: demo test test-slow check coverage release clean
.DELETE_ON_ERROR:

demo: $(DEMO)/.installed
	$(DEMO)/bin/ofl sim

test: $(VENV)/.installed
	$(VENV)/bin/python -m pytest -n $(JOBS) $(ARGS)

test-slow: $(VENV)/.installed
	$(VENV)/bin/python -m pytest -m slow $(ARGS)

coverage: $(VENV)/.installed
	$(VENV)/bin/python -m pytest -n $(JOBS) --cov --cov-report=term --cov-fail-under=90 $(ARGS)

check: $(VENV)/.installed
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy

# Wheel and source archive, what they consist of (CycloneDX), and all that `ofl sim` needs with hashes, in dist/.
release: $(VENV)/.installed
	rm -rf dist
	$(VENV)/bin/python -m hatchling build
	$(VENV)/bin/python $(PIP) --dry-run --ignore-installed --report dist/report.json '.[sim]'
	$(VENV)/bin/python tools/bill_of_materials.py dist/report.json dist
	rm dist/report.json

$(DEMO)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(DEMO)
	$(DEMO)/bin/python $(PIP) '.[sim]'
	touch $@

$(VENV)/.installed: pyproject.toml research/pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/python $(PIP) --editable '.[dev]' --editable ./research
	touch $@

clean:
	rm -rf $(DEMO) $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
