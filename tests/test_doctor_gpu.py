"""The GPU lines of `tdcore doctor`: without a driver, with a fake driver, and for missing features."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tdcore.cli.doctor_check import Check
from tdcore.cli.doctor_gpu import checks_of
from tests.cuda_fakes import build_fake

DEVICE: dict[str, Any] = {
    "name": "H100",
    "memory_bytes": 80 << 30,
    "architecture": 90,
    "mig": False,
    "mps": False,
    "reason": "",
    "kernels": "fatbin",
    "commit": "stream_write",
    "commit_reason": "",
}
REPORT: dict[str, Any] = {
    "driver_path": "/usr/lib/libcuda.so.1",
    "driver_version": "12.4",
    "driver_reason": "",
    "devices": [DEVICE],
    "nvrtc_path": "",
    "nvrtc_version": "",
    "fatbin": "sm_80 sm_90 sm_100 compute_75",
}


def lines(**changed: Any) -> dict[str, Check]:
    return {check.name: check for check in checks_of(REPORT | changed)}


def device_lines(**changed: Any) -> dict[str, Check]:
    return lines(devices=[DEVICE | changed])


def doctor(driver: str, packages: Path | None = None, **env: str) -> dict[str, dict[str, str]]:
    """Return the checks of `tdcore doctor` with this library as the driver."""
    merged = os.environ | {"TDCORE_LIBCUDA": driver} | env
    if packages is not None:
        merged["PYTHONPATH"] = os.pathsep.join([merged.get("PYTHONPATH", ""), str(packages)])
    command = [sys.executable, "-m", "tdcore.cli", "doctor", "--json"]
    done = subprocess.run(command, env=merged, capture_output=True, text=True, check=True)
    return {check["name"]: check for check in json.loads(done.stdout)["checks"]}


def test_a_good_device_has_three_lines_that_are_ok() -> None:
    found = lines()
    assert list(found) == ["CUDA driver", "GPU 0", "GPU 0 commit", "GPU 0 kernels", "GPU kernels"]
    assert {check.state for check in found.values()} == {"ok"}
    assert found["CUDA driver"].detail == "CUDA 12.4, 1 device"
    assert found["GPU 0"].detail == "H100, 85.9 GB, compute capability 9.0"


def test_every_device_has_its_lines() -> None:
    assert {"GPU 0 commit", "GPU 1 commit"} <= lines(devices=[DEVICE, DEVICE]).keys()


def test_slices_and_shared_devices_are_said() -> None:
    assert device_lines(mig=True, mps=True)["GPU 0"].detail.endswith(", a MIG slice, shared through MPS")


def test_a_device_that_cannot_be_used_says_why_and_what_to_do() -> None:
    reason = "the driver does not take the kernels; no NVRTC was found; pip install it"
    found = device_lines(reason=reason, commit="", kernels="")
    assert "GPU 0 commit" not in found
    assert found["GPU 0"].state == "failed"
    assert found["GPU 0"].detail.endswith("the driver does not take the kernels; no NVRTC was found")
    assert found["GPU 0"].advice == "pip install it"


def test_a_commit_by_polling_is_missing_something_and_says_why() -> None:
    check = device_lines(commit="poll", commit_reason="a commit kernel is not visible to the host")[
        "GPU 0 commit"
    ]
    assert check.state == "missing"
    assert "a commit kernel is not visible to the host" in check.detail
    assert "records that the GPU still copies are lost" in check.advice


def test_without_a_driver_there_is_one_calm_line() -> None:
    found = lines(driver_reason="no CUDA driver: libcuda.so.1; install it", driver_version="", devices=[])
    assert list(found) == ["CUDA driver", "GPU kernels"]
    assert found["CUDA driver"].state == "missing"
    assert found["CUDA driver"].advice == "needed for GPU tensors only: install it"


def test_neither_fatbin_nor_compiler_says_what_to_install() -> None:
    check = lines(fatbin="")["GPU kernels"]
    assert check.state == "missing"
    assert "tdcore-capture[cuda]" in check.advice


def test_doctor_works_where_there_is_no_driver() -> None:
    found = doctor("/nowhere/libcuda.so.1")
    assert found["CUDA driver"]["state"] == "missing"
    assert "/nowhere/libcuda.so.1" in found["CUDA driver"]["detail"]


@pytest.fixture(scope="module")
def fakes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("fakes")
    build_fake("fake_cuda", folder / "libcuda.so.1")
    build_fake("fake_nvrtc", folder / "packages/nvidia/cuda_nvrtc/lib/libnvrtc.so.12")
    return folder


def test_doctor_sets_up_a_device_and_finds_its_way_of_committing(fakes: Path, tmp_path: Path) -> None:
    found = doctor(str(fakes / "libcuda.so.1"), fakes / "packages", TDCORE_CACHE=str(tmp_path))
    assert found["CUDA driver"]["detail"] == "CUDA 12.4, 1 device"
    assert found["GPU 0"]["detail"].startswith(
        "Fake H100 MIG 1g.10gb, 8.6 GB, compute capability 9.0, a MIG slice"
    )
    assert found["GPU 0 commit"]["detail"] == "records are committed by writes in stream order"


def test_kernels_may_be_asked_from_nvrtc_and_are_kept(fakes: Path, tmp_path: Path) -> None:
    env = {"TDCORE_CUDA_KERNELS": "nvrtc", "TDCORE_CACHE": str(tmp_path)}
    found = doctor(str(fakes / "libcuda.so.1"), fakes / "packages", **env)
    assert "compiled by NVRTC" in found["GPU 0 kernels"]["detail"]
    assert len(list((tmp_path / "kernels").glob("*.cubin"))) == 1


def test_importing_the_extension_loads_nothing_of_cuda() -> None:
    code = "import tdcore._core; print(open('/proc/self/maps').read())"
    maps = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert "_core" in maps
    assert not [name for name in ("libcuda", "libcudart", "libnvrtc") if name in maps]
