"""The build with and without nvcc: configure reports which, and the core compiles in both cases."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
NVCC = shutil.which("nvcc") or shutil.which("nvcc", path="/usr/local/cuda/bin")


def cmake(*arguments: str) -> subprocess.CompletedProcess[str]:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # cmake of this environment
    return subprocess.run(
        ["cmake", *arguments], env=os.environ | {"PATH": path}, capture_output=True, text=True
    )


def configure(build: Path, *options: str) -> subprocess.CompletedProcess[str]:
    return cmake(f"-S{ROOT}", f"-B{build}", "-DTDCORE_BUILD_EXTENSION=OFF", *options)


def test_without_nvcc_configure_says_so_and_goes_on(tmp_path: Path) -> None:
    done = configure(tmp_path, "-DTDCORE_NVCC=OFF")  # as if CMake had searched for nvcc and not found it
    assert done.returncode == 0, done.stderr
    assert (
        "GPU kernels: there is no nvcc; they are left out, and NVRTC compiles them at first use"
        in done.stdout
    )


def test_an_nvcc_that_does_not_work_is_left_out_unless_it_is_asked_for(tmp_path: Path) -> None:
    broken = tmp_path / "nvcc"
    broken.write_text("#!/bin/sh\necho sm_80 sm_90 sm_100 ''\n[ \"$1\" = --list-gpu-code ] || exit 1\n")
    broken.chmod(0o755)
    done = configure(tmp_path / "auto", f"-DTDCORE_NVCC={broken}")
    assert done.returncode == 0, done.stderr
    assert "GPU kernels: it does not work with" in done.stdout
    assert configure(tmp_path / "on", f"-DTDCORE_NVCC={broken}", "-DTDCORE_CUDA=ON").returncode != 0


def test_the_core_compiles_without_compiled_kernels(tmp_path: Path) -> None:
    done = configure(tmp_path, "-DTDCORE_CUDA=OFF")
    assert "GPU kernels: nvcc is not used (TDCORE_CUDA=OFF)" in done.stdout
    source = tmp_path / "kernels.cu"
    assert "tdcore_stats" in source.read_text()
    command = [os.environ.get("CXX", "c++"), "-std=c++20", "-Wall", "-Wextra", "-Werror", f"-I{ROOT}/csrc",
               f'-DTDCORE_KERNEL_SOURCE="{source}"', "-c", str(ROOT / "csrc/cuda/kernel_image.cpp"),
               "-o", str(tmp_path / "image.o")]  # fmt: skip
    subprocess.run(command, check=True)


def test_builds_with_a_common_cache_compile_the_same_kernels_once(tmp_path: Path) -> None:
    nvcc, log, cache = tmp_path / "nvcc", tmp_path / "log", tmp_path / "cache"
    nvcc.write_text(
        "#!/bin/sh\n"
        "case $* in\n"
        "--list-gpu-code) echo sm_80 sm_90 sm_100 '' ;;\n"
        f"*kernels.cu) echo $* >>{log}; while [ $1 != -o ]; do shift; done; echo code >$2 ;;\n"
        "esac\n"
    )
    nvcc.chmod(0o755)
    for build, architectures in (("first", "80;90"), ("second", "80;90"), ("other", "80")):
        options = (f"-DTDCORE_KERNEL_CACHE={cache}", f"-DTDCORE_CUDA_ARCHITECTURES={architectures}")
        done = configure(tmp_path / build, f"-DTDCORE_NVCC={nvcc}", *options)
        assert done.returncode == 0, done.stderr
        done = cmake("--build", str(tmp_path / build), "--target", "tdcore_kernels")
        assert done.returncode == 0, done.stderr
    assert len(log.read_text().splitlines()) == 2
    assert [path.read_text() for path in cache.iterdir()] == ["code\n"] * 2


@pytest.mark.skipif(NVCC is None, reason="needs nvcc")
def test_with_nvcc_the_core_carries_compiled_kernels(tmp_path: Path) -> None:
    assert "compiles them for sm_" in configure(tmp_path).stdout
    report = subprocess.run(
        [sys.executable, "-c", "import tdcore._core as c; print(c.cuda_report()['fatbin'])"],
        env=os.environ | {"TDCORE_LIBCUDA": "/nowhere"}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert "sm_80" in report.stdout
