"""The number of NVIDIA devices, from the device files and CUDA_VISIBLE_DEVICES, without CUDA."""

from __future__ import annotations

from pathlib import Path

import pytest

from tdcore.session.devices import visible_nvidia_devices


@pytest.fixture
def four_devices(tmp_path: Path) -> Path:
    for name in (
        "nvidia0",
        "nvidia1",
        "nvidia2",
        "nvidia13",
        "nvidiactl",
        "nvidia-uvm",
        "nvidia-caps",
        "null",
    ):
        (tmp_path / name).touch()
    return tmp_path


def test_without_a_list_the_device_files_are_counted_and_only_those(four_devices: Path) -> None:
    assert visible_nvidia_devices({}, four_devices) == 4


@pytest.mark.parametrize(
    ("listed", "count"),
    [
        ("", 0),
        ("-1", 0),
        ("NoDevFiles", 0),
        ("0", 1),
        ("3, 1", 2),
        ("1,1", 1),
        ("0,1,-1,2", 2),
        ("0,4,1", 1),
        ("GPU-8932f937-d72c-4106-c12f-20bd9faed9f6,GPU-1f3e", 2),
        ("MIG-d7c5f0e6-0a4b-5cc8-b0a9-a3e2c6f3bd2f", 1),
        ("MIG-GPU-8932f937-d72c-4106-c12f-20bd9faed9f6/1/0", 1),
    ],
)
def test_a_list_of_visible_devices_is_read_as_the_driver_reads_it(
    four_devices: Path, listed: str, count: int
) -> None:
    assert visible_nvidia_devices({"CUDA_VISIBLE_DEVICES": listed}, four_devices) == count


def test_without_device_files_there_are_none_whatever_the_list_says(tmp_path: Path) -> None:
    assert visible_nvidia_devices({}, tmp_path) == 0
    assert visible_nvidia_devices({"CUDA_VISIBLE_DEVICES": "0,1"}, tmp_path) == 0
    assert visible_nvidia_devices({}, tmp_path / "missing") == 0


def test_under_wsl_there_may_be_any_number(tmp_path: Path) -> None:
    (tmp_path / "dxg").touch()
    assert visible_nvidia_devices({}, tmp_path) == 8
    assert visible_nvidia_devices({"CUDA_VISIBLE_DEVICES": "1"}, tmp_path) == 1
    assert visible_nvidia_devices({"CUDA_VISIBLE_DEVICES": ""}, tmp_path) == 0
