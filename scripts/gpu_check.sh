#!/usr/bin/env bash
# For a machine with a GPU: builds, runs the tests marked gpu and the C++ tests (its CPU may have AVX-512),
# and the native benchmarks; prints the card's and the CPU's names first. Under 5 minutes. Needs no network:
# build tools and test packages must be installed already.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
PYTHON="${PYTHON:-python3}"
OUT="${OUT:-build/gpu}"
mkdir -p "$OUT" build

nvidia-smi --query-gpu=name,driver_version --format=csv,noheader || echo "no GPU"
grep -m1 'model name' /proc/cpuinfo || true

CMAKE_ARGS=(-DPython_EXECUTABLE="$("$PYTHON" -c 'import sys; print(sys.executable)')" -DTDCORE_VERSION=dev
  -Dpybind11_DIR="$("$PYTHON" -m pybind11 --cmakedir)" -DCMAKE_LIBRARY_OUTPUT_DIRECTORY="$PWD/tdcore")
cmake -S . -B build/gpu-check -DTDCORE_BUILD_TESTS=ON "${CMAKE_ARGS[@]}" >"$OUT/cmake.log"
cmake --build build/gpu-check --parallel "$(nproc)" >>"$OUT/cmake.log" 2>&1 || { tail -n 40 "$OUT/cmake.log"; exit 1; }
ctest --test-dir build/gpu-check --output-on-failure | tee "$OUT/ctest.log"

export PYTHONPATH="$PWD"
"$PYTHON" -m pytest -q -m gpu tests -p no:cacheprovider | tee "$OUT/gpu.log"
"$PYTHON" -m pytest -q tests/test_stats.py tests/test_capture.py -p no:cacheprovider | tee "$OUT/native.log"
"$PYTHON" -m pytest -q benchmarks/bench_native.py --benchmark-only --benchmark-json="$OUT/native.json" | tail -n 40
