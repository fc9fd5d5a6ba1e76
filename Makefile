# Two commands for a fresh machine with Python >= 3.11, pip and make: `make demo` and `make test`.
PYTHON ?= python3
PAIR ?= tiny-kimi
PY := .venv/bin/python
export PIP_DISABLE_PIP_VERSION_CHECK := 1
REQUIREMENTS := tests/sglang_cpu/requirements.txt tests/sglang_cpu/requirements-nodeps.txt tests/requirements.txt

.PHONY: demo test test-fast faults test-peers bench-recorder lint clean env

env: .venv/.ready

# SGLang is installed without its dependencies: those are CUDA kernels; the CPU ones are in tests/sglang_cpu.
.venv/.ready: pyproject.toml compare/kernels/rows.c compare/kernels/rows_body.h tests/sglang_cpu/pyproject.toml $(REQUIREMENTS)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "drafttrace needs Python 3.11 or newer")'
	test -x $(PY) || $(PYTHON) -m venv .venv
	$(PY) -m pip install --quiet -r tests/sglang_cpu/requirements.txt
	$(PY) -m pip install --quiet --no-deps -r tests/sglang_cpu/requirements-nodeps.txt
	$(PY) -m pip install --quiet -r tests/requirements.txt
	$(PY) -m pip install --quiet --no-deps --no-build-isolation -e . -e tests/sglang_cpu
	touch $@

demo: .venv/.ready
	$(PY) -m demo --pair $(PAIR) --out demo-output

test: .venv/.ready
	tests/system_packages.sh
	$(PY) -m pytest

test-fast: .venv/.ready
	$(PY) -m pytest tests/unit tests/cli

# The table of faults put into real dumps and servers: fault, expected id, found ids.
faults: .venv/.ready
	$(PY) -m pytest tests/faults -m faults

# The dump layouts against the projects' own readers and writers, which are fetched with pip; not part of `make test`.
test-peers: .venv/.ready
	$(PY) -m pytest tests/peers -m peers

bench-recorder: .venv/.ready
	$(PY) bench/recorder.py

# Type checkers do not follow the folders' mapping in pyproject.toml, so they are shown the installed shape.
lint: .venv/.ready
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	mkdir -p .venv/typing/drafttrace
	ln -sfn $(CURDIR)/drafttrace/*.py $(CURDIR)/drafttrace/py.typed .venv/typing/drafttrace/
	ln -sfn $(CURDIR)/tracer $(CURDIR)/hooks $(CURDIR)/compare .venv/typing/drafttrace/
	MYPYPATH=.venv/typing .venv/bin/mypy -p drafttrace

clean:
	rm -rf demo-output build .pytest_cache .mypy_cache .ruff_cache .hypothesis
