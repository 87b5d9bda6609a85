"""Samples of GPUs, with a stand-in for the driver's library (tests/cpp/fake_nvml.cpp)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cuda_fakes import build_fake

SAMPLES = """
import json
from tdcore.flusher.system.gpus import Gpus
gpus = Gpus()
print(json.dumps([gpus.sample(), gpus.sample()]))
gpus.close()
"""


def run(code: str, library_path: Path | None) -> subprocess.CompletedProcess[str]:
    variables = {**os.environ, "LD_LIBRARY_PATH": str(library_path or "")}
    return subprocess.run(
        [sys.executable, "-c", code], env=variables, capture_output=True, text=True, check=True
    )


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Two samples of two GPUs."""
    folder = tmp_path_factory.mktemp("nvml")
    build_fake("fake_nvml", folder / "libnvidia-ml.so.1")
    return json.loads(run(SAMPLES, folder).stdout)


def test_a_sample_has_the_values_of_each_gpu(samples: Any) -> None:
    first = samples[0]["gpus"][0]
    assert first == {
        "index": 0,
        "uuid": "GPU-made-up",
        "utilization_percent": 87,
        "memory_total": 80 << 30,
        "memory_used": 60 << 30,
        "power_watts": 412.5,
        "temperature_celsius": 71,
        "sm_clock_mhz": 1755,
        "memory_clock_mhz": 2619,
        "throttle_reasons": 0x44,
    }


def test_traffic_is_that_since_the_sample_before(samples: Any) -> None:
    second = samples[1]["gpus"][0]
    assert (second["pcie_sent_bytes"], second["pcie_received_bytes"]) == (1000, 1000)
    assert (second["nvlink_sent_bytes"], second["nvlink_received_bytes"]) == (1000 * 1024, 1000 * 1024)


def test_values_that_a_gpu_does_not_support_are_missing(samples: Any) -> None:
    gpu = samples[1]["gpus"][1]
    assert gpu["utilization_percent"] == 12
    assert gpu["memory_used"] == 60 << 30
    assert gpu["power_watts"] is gpu["uuid"] is gpu["temperature_celsius"] is gpu["throttle_reasons"] is None
    assert "pcie_sent_bytes" not in gpu


def test_a_machine_without_a_driver_has_no_gpus() -> None:
    done = run("from tdcore.flusher.system.gpus import Gpus; print(Gpus().sample())", None)
    assert (done.stdout, done.stderr) == ("{}\n", "")


def test_a_driver_without_the_package_is_reported(tmp_path: Path) -> None:
    (tmp_path / "nvidiactl").touch()
    code = (
        "import sys; sys.modules['pynvml'] = None\n"
        f"from tdcore.flusher.system.gpus import Gpus; print(Gpus({str(tmp_path)!r}).sample())"
    )
    done = run(code, None)
    assert done.stdout == "{}\n"
    assert 'pip install "tdcore-capture[gpu]"' in done.stderr
