# Everything here runs in .venv, which is made from requirements.lock when that is new or has changed.
# Needs Python 3.11 or newer, make and a C compiler, and nothing else.

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# Processes that share the tests out; `make test JOBS=0` runs them in one, as a debugger wants it.
JOBS := 2
# Interpreters in the order they are tried; `make PYTHON=/path/to/python` names one.
PYTHONS := $(PYTHON) python3.12 python3.11 python3.13 python3 python

.DELETE_ON_ERROR:
.PHONY: help demo kafka-demo test soak bench check style types imports lock-check audit lock clean

help:
	@echo "make demo           watch a node accept, deliver, retry, dead-letter and replay; goes on serving"
	@echo "make demo ONCE=1    the same, ends after its table; exit status 0 only if the counts add up"
	@echo "make kafka-demo     three brokers, two edges, two workers as processes; needs tests/support/install_brokers.sh"
	@echo "make test           the tests but the long ones, in two processes (JOBS=0: in one; ARGS='-k name': some)"
	@echo "make soak           the long tests: twenty kills, ten thousand entries, long properties"
	@echo "make bench          the benchmarks"
	@echo "make check          style, types, import rules, lock file"
	@echo "make audit          known vulnerabilities in what the lock file pins (asks the network)"
	@echo "make lock           resolve requirements.lock again from pyproject.toml (UPGRADE=1: to the newest)"
	@echo "make clean          remove what was made"

demo: $(STAMP)
	@$(BIN)/ankusa demo $(if $(filter-out 0,$(ONCE)),--once)

kafka-demo: $(STAMP)
	@$(BIN)/python -m compose.processes $(if $(filter-out 0,$(ONCE)),--once)

test: $(STAMP)
	$(BIN)/python -m pytest -m "not soak" -n $(JOBS) -rfEs $(ARGS)

soak: $(STAMP)
	$(BIN)/python -m pytest -m soak --timeout 3600 -s -rfEs $(ARGS)

bench: $(STAMP)
	$(BIN)/python -m tests.bench $(ARGS)

check: style types imports lock-check

style: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP)
	$(BIN)/mypy

imports: $(STAMP)
	$(BIN)/lint-imports

lock-check: $(STAMP)
	$(BIN)/python .ci/check_lock.py

audit: $(STAMP)
	$(BIN)/python .ci/audit_lock.py

# The lock holds the runtime, the dev tools and the build backend, for every supported Python. Run it on the oldest
# one: what only older versions need must be in it. No index, host or option of this machine goes into the file.
lock: $(STAMP)
	$(BIN)/pip-compile --quiet $(if $(UPGRADE),--upgrade) --all-build-deps --extra dev --generate-hashes \
	    --strip-extras --allow-unsafe --no-emit-options --no-emit-index-url --no-emit-trusted-host \
	    --no-emit-find-links --output-file requirements.lock pyproject.toml
	$(BIN)/python .ci/check_lock.py

clean:
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The stamp holds the checksum of what was installed, so that a fresh checkout's new times install nothing again.
$(STAMP): requirements.lock pyproject.toml
	@sum=$$(cat requirements.lock pyproject.toml | cksum); \
	if [ "$$(cat $@ 2>/dev/null)" = "$$sum" ] && $(BIN)/python -c '' 2>/dev/null; then touch $@; exit 0; fi; \
	set -e; \
	if ! $(BIN)/python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
	    found=; \
	    for python in $(PYTHONS); do \
	        if $$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then found=$$python; break; fi; \
	    done; \
	    if [ -z "$$found" ]; then \
	        echo "Python 3.11 or newer is needed and was not found (looked for: $(strip $(PYTHONS)))." >&2; \
	        echo "Install one, or name it: make PYTHON=/path/to/python" >&2; exit 1; \
	    fi; \
	    echo "making $(VENV) with $$($$found -c 'import sys; print(sys.executable, sys.version.split()[0])')"; \
	    rm -rf $(VENV); \
	    $$found -m venv $(VENV) || { \
	        rm -rf $(VENV); \
	        echo "$$found cannot make a virtual environment; its venv module may be a package of its own" >&2; exit 1; }; \
	fi; \
	echo "installing what requirements.lock pins: a minute or two, more on a slow line"; \
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock; \
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .; \
	echo "$$sum" > $@
