# Each target does all of its own set-up: git, make and python3 are enough.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check

.PHONY: demo test test-long check docs smoke clean

demo: $(VENV)/.core
	@rm -rf demo-release
	@$(BIN)/capemix synth digits --scheme cape --sites 10 --epsilon 10 --out demo-release
	@$(BIN)/capemix evaluate demo-release --test digits

test: $(VENV)/.all
	$(BIN)/python -m pytest -n auto --dist worksteal --durations=25 -m "not long"

test-long: $(VENV)/.all
	$(BIN)/python -m pytest -m long

check: $(VENV)/.all
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

docs: $(VENV)/.all
	$(BIN)/python -m sphinx -q -E -W --keep-going docs site

# The wheel as a user gets it: small, and whole in an environment that has nothing else.
smoke: $(VENV)/bin/python
	rm -rf build/smoke && mkdir -p build/smoke
	$(BIN)/python -m pip wheel --quiet --no-deps --wheel-dir build/smoke .
	test $$(stat -c %s build/smoke/capemix-*.whl) -lt 1000000
	$(PYTHON) -m venv build/smoke/venv
	build/smoke/venv/bin/python -m pip install --quiet --disable-pip-version-check build/smoke/capemix-*.whl
	cd build/smoke && venv/bin/capemix synth digits --epsilon 10 --out release
	cd build/smoke && venv/bin/capemix evaluate release --test digits

clean:
	rm -rf build $(VENV) demo-release site

$(VENV)/bin/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "capemix needs Python 3.11 or newer")'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.core: pyproject.toml | $(VENV)/bin/python
	$(PIP) -e .
	@touch $@

# Dependency groups are read from pyproject.toml itself, so that an older pip will do.
$(VENV)/.all: pyproject.toml research/pyproject.toml $(VENV)/.core
	@$(BIN)/python -c "import tomllib; g = tomllib.load(open('pyproject.toml', 'rb'))['dependency-groups']; print('\n'.join(g['test'] + g['docs'] + g['check']))" > $(VENV)/tools.txt
	$(PIP) -e '.[torch,simulation]' -e './research[plot]' -r $(VENV)/tools.txt
	@touch $@
