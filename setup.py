"""Builds tdcore: CMake for the extension, setuptools for everything else (metadata is in pyproject.toml)."""

from __future__ import annotations

import os
import platform
import shlex
import subprocess
import sys
from pathlib import Path

import pybind11
from setuptools import Extension, find_packages, setup
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).resolve().parent
MACHINES = {"x86_64": "x86-64", "amd64": "x86-64", "aarch64": "aarch64", "arm64": "aarch64"}

# hooks/ and rules/ are next to tdcore/ in the repository, and inside it after installation.
FOLDERS = {"tdcore": "tdcore", "tdcore.hooks": "hooks", "tdcore.rules": "rules"}
# find_packages also walks the links tdcore/hooks and tdcore/rules; the mapped folders below replace the
# packages found there.
LINKS = ("hooks", "rules")
PACKAGES = sorted(
    {
        name
        for top, folder in FOLDERS.items()
        for name in (
            top,
            *(
                f"{top}.{sub}"
                for sub in find_packages(folder)
                if not (top == "tdcore" and sub.split(".")[0] in LINKS)
            ),
        )
    }
)


def refuse_unsupported_platform() -> None:
    """Exit with an error message on platforms that the core does not support, before the compiler runs."""
    if not sys.platform.startswith("linux") or platform.machine().lower() not in MACHINES:
        sys.exit(
            f"tdcore runs on Linux x86-64 and aarch64; this is {platform.system()} {platform.machine()}. "
            "It needs memfd_create, pidfds and 64-bit lock-free atomics that processes can share."
        )


class CMakeBuild(build_ext):  # type: ignore[misc]  # setuptools has no annotations
    """Run CMake, and write the extension to the path that setuptools expects."""

    def build_extension(self, ext: Extension) -> None:
        output = Path(self.get_ext_fullpath(ext.name)).resolve()
        # TDCORE_BUILD_DIR: a build folder that is kept, so that the next build compiles only changed files.
        build = Path(os.environ.get("TDCORE_BUILD_DIR") or Path(self.build_temp) / "cmake").resolve()
        build.mkdir(parents=True, exist_ok=True)
        configure = [
            "cmake",
            f"-S{ROOT}",
            f"-B{build}",
            f"-DPython_EXECUTABLE={sys.executable}",
            f"-Dpybind11_DIR={pybind11.get_cmake_dir()}",
            f"-DCMAKE_LIBRARY_OUTPUT_DIRECTORY={output.parent}",
            "-DTDCORE_BUILD_EXTENSION=ON",
            "-DCMAKE_BUILD_TYPE=Release",
            # AUTO, ON or OFF: whether nvcc compiles the GPU kernels (cmake/Kernels.cmake).
            f"-DTDCORE_CUDA={os.environ.get('TDCORE_CUDA') or 'AUTO'}",
            # More options for CMake, as other projects take them.
            *shlex.split(os.environ.get("CMAKE_ARGS", "")),
        ]
        # An editable install can run the tests, which need the simulated device. Wheels do not contain it.
        targets = ["_core", "_sim"] if self.editable_mode else ["_core"]
        try:
            subprocess.run(configure, check=True)
            jobs = os.environ.get("CMAKE_BUILD_PARALLEL_LEVEL") or str(os.cpu_count() or 1)
            subprocess.run(
                ["cmake", "--build", str(build), "--parallel", jobs, "--target", *targets], check=True
            )
        except FileNotFoundError as error:
            raise SystemExit(
                "tdcore needs CMake >= 3.18 to build; install it with `pip install cmake`"
            ) from error


refuse_unsupported_platform()
setup(
    packages=PACKAGES,
    package_dir=FOLDERS,
    ext_modules=[Extension("tdcore._core", sources=[])],
    cmdclass={"build_ext": CMakeBuild},
)
