#!/usr/bin/env bash
# Checks for a machine with a GPU: what only a GPU can show, the most important first. Ends within BUDGET seconds (540):
# each part has a time limit, and no part starts when the time is over. Needs no network: install build tools and test
# packages before, or put them into PYTHONPATH. If a part fails or ends late, its output is kept and the other parts
# still run; the last lines list the failed parts. OUT (build/gpu) gets all output in log.txt and the tables in a few
# JSON files, which are easy to copy from a remote machine.
#   scripts/gpu_check.sh             all parts; for 16 cores and one GPU
#   PARTS="build soak" ...           only these parts
#   EXTENSIONS_BUILT=1 ...           with the extensions that are already built
#   scripts/gpu_check.sh --dry-run   the parts that can run on the simulated device, without a GPU
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1
PYTHON="$("${PYTHON:-python3}" -c 'import sys; print(sys.executable)')"
OUT="${OUT:-build/gpu}"
BUILD="${BUILD:-build/gpu-check}"
mkdir -p "$OUT" "$BUILD"
OUT="$(cd "$OUT" && pwd)"
: >"$OUT/log.txt"
export PYTHON OUT BUILD PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}"

if [ "${1:-}" = "--dry-run" ]; then
  export DRY=1 DEVICE=host BENCHMARK="--quick --records 500" SOAK="" TDCORE_TEST_GPU=simulated
  BUDGET="${BUDGET:-1500}"
else
  export DRY="" DEVICE=cuda:0 BENCHMARK="" SOAK="--records 300000"
  BUDGET="${BUDGET:-540}"
fi

FAILED=()
part() { # name, seconds, lines to show, command line
  local name="$1" seconds="$2" begun=$SECONDS left=$((BUDGET - SECONDS))
  [ -z "${PARTS:-}" ] || [[ " $PARTS " == *" $name "* ]] || return 0
  printf '\n== %s\n' "$name"
  if [ "$left" -lt 5 ]; then
    echo "== $name: FAILED, no time left of $BUDGET s"
    FAILED+=("$name")
    return
  fi
  local log="$BUILD/$name.log" verdict=ok lines="$3"
  timeout --kill-after=5 $((seconds < left ? seconds : left)) bash -c "$4" >"$log" 2>&1 || verdict=FAILED
  if [ "$verdict" = FAILED ]; then
    FAILED+=("$name")
    lines=40
  fi
  tail -n "$lines" "$log"
  printf '== %s: %s, %d s\n' "$name" "$verdict" $((SECONDS - begun)) | tee -a "$log"
  { printf '\n== %s\n' "$name" && cat "$log"; } >>"$OUT/log.txt"
}

machine() {
  git log -1 --format='commit %h' 2>/dev/null || echo "commit unknown"
  nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader || echo "no GPU"
  grep -m1 'model name' /proc/cpuinfo || true
  echo "$(nproc) cores"
  grep -E '^(MemTotal|MemAvailable|HugePages_Total|Shmem):' /proc/meminfo
  df -h /dev/shm "$OUT" || true
  "$PYTHON" --version
  nvcc --version | tail -n 1 || echo "no nvcc: the kernels are compiled by nvrtc, or are those of a wheel"
  "$PYTHON" -c 'import torch; print("torch", torch.__version__, "CUDA", torch.version.cuda)'
}

device_tests() { # names of the C++ tests of devices, which run on the simulated device only
  find tests/cpp -name '*.cpp' -printf '%f\n' | sed 's/\.cpp$//' | grep -E '^test_.*(device|cuda|kernel|lane|commit)'
}

build() {
  local options=(-DTDCORE_BUILD_TESTS=ON -DTDCORE_BUILD_BENCHMARKS=ON) targets=(gpu_benchmark) pybind11
  [ -z "$DRY" ] || mapfile -t -O 1 targets < <(device_tests)
  if [ -n "${EXTENSIONS_BUILT:-}" ]; then
    echo "the extensions are not built again, because other programs may be loading them"
  elif pybind11="$("$PYTHON" -m pybind11 --cmakedir)"; then
    options+=(-DTDCORE_BUILD_EXTENSION=ON -DPython_EXECUTABLE="$PYTHON" -Dpybind11_DIR="$pybind11"
      -DCMAKE_LIBRARY_OUTPUT_DIRECTORY="$PWD/tdcore")
    targets+=(_core _sim)
  else
    echo "$PYTHON has no pybind11: without the extensions, the parts in Python will fail"
    options+=(-DTDCORE_BUILD_EXTENSION=OFF)
  fi
  command -v ccache >/dev/null && options+=(-DCMAKE_CXX_COMPILER_LAUNCHER=ccache)
  cmake -S . -B "$BUILD" "${options[@]}" &&
    cmake --build "$BUILD" --parallel "$(nproc)" --target "${targets[@]}"
}

run_device_tests() {
  ctest --test-dir "$BUILD" --output-on-failure --parallel 4 -R "^($(device_tests | paste -sd '|'))\$"
}

benchmark() { # file in $OUT, parts: JSON goes to the file, progress to the log
  local options
  read -r -a options <<<"$BENCHMARK"
  "$BUILD/gpu_benchmark" --device "$DEVICE" "${options[@]}" --parts "$2" >"$OUT/$1"
}

soak_sees_early_commits() { # proves that the soak test detects early commits
  "$BUILD/gpu_benchmark" --device early --quick --records 2000 --parts soak >"$OUT/soak-early.json" &&
    grep -q '"early_commits": [1-9]' "$OUT/soak-early.json"
}

sanitizer() { # tool
  local program
  program="$(command -v compute-sanitizer || compgen -G '/usr/local/cuda*/bin/compute-sanitizer' | head -n 1)"
  if [ -z "$program" ]; then
    echo "compute-sanitizer is not installed: the kernels were not run under $1"
  elif [ -n "$DRY" ]; then
    echo "no GPU: the kernels were not run under $1"
  else
    "$program" --tool "$1" --error-exitcode 9 "$BUILD/gpu_benchmark" --device "$DEVICE" --parts check
  fi
}
export -f machine device_tests build run_device_tests benchmark soak_sees_early_commits sanitizer

TRAININGS="--seconds"
if [ -n "$DRY" ]; then
  TRAININGS="--device simulated --models tiny --modes eager --quick --pairs 1 --ring-bytes 67108864 --seconds"
fi

python_tests() { # option -m of pytest
  "$PYTHON" -X faulthandler -m pytest -v -m "$1" tests/gpu -p no:cacheprovider --confcutdir=tests/gpu
}

trainings() { # folder in $OUT, longest time in seconds, models and modes
  "$PYTHON" -u -m benchmarks gpu --out "$OUT/$1" $TRAININGS "${@:2}"
}
export TRAININGS
export -f python_tests trainings

part machine 30 20 machine
part build 1200 1 build
[ -z "$DRY" ] || part ctest 120 8 run_device_tests
part doctor 30 15 "\"\$PYTHON\" -m tdcore.cli doctor || true" # its exit code also depends on parts of the machine that these checks do not need
part probe 30 6 'benchmark probe.json probe'
part kernels-check 60 1 'benchmark check.json check'
part soak 120 8 'BENCHMARK="$BENCHMARK $SOAK" benchmark soak.json soak'
[ -z "$DRY" ] || part soak-sees-early-commits 30 1 soak_sees_early_commits
part rates 60 45 'benchmark rates.json kernels,dma,calls'
part pytest $([ -n "$DRY" ] && echo 900 || echo 120) 15 'python_tests "gpu and not compiles"' # in CI the machine may be busy
part memcheck 45 3 'sanitizer memcheck'
part racecheck 45 3 'sanitizer racecheck'
if [ -n "$DRY" ]; then
  part trainings 300 60 'trainings tiny 300'
else
  part resnet50 60 40 'trainings resnet50 55 --models resnet50 resnet50_channels_last --modes eager'
  part transformer 60 40 'trainings transformer 55 --models transformer --modes eager'
  part pytest-compile 90 15 'python_tests "gpu and compiles"'
  part compiled 60 40 'trainings compiled 55 --models transformer --modes compiled'
fi

printf '\n%d s in all, results in %s\n' "$SECONDS" "$OUT"
if [ ${#FAILED[@]} -gt 0 ]; then
  printf 'FAILED: %s\n' "${FAILED[*]}"
  exit 1
fi
echo "all parts passed"
