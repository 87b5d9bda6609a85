"""The GPU lines of tdcore doctor: driver, devices, and for each device its commit mode and kernels."""

from __future__ import annotations

from typing import Any

from tdcore.cli.doctor_check import Check
from tdcore.cli.output import human_bytes

__all__ = ["checks", "checks_of"]

# Meaning of each rung for a user.
_COMMITS = {
    "stream_write": ("ok", "records are committed by writes in stream order"),
    "commit_kernel": ("ok", "records are committed by a kernel of one thread"),
    "poll": ("missing", "records are committed by a thread of the training process"),
}
_KERNELS = {"fatbin": "compiled with tdcore", "nvrtc": "compiled by NVRTC on this machine, kept in the cache"}


def checks() -> list[Check]:
    """Check CUDA, which is initialized in this process. Never raises: a missing driver is a result."""
    try:
        import tdcore._core as _core
    except ImportError:  # the line about native code reports this error
        return []
    try:
        return checks_of(_core.cuda_report())
    except Exception as error:  # any exception is the result of the check
        return [
            Check(
                name="CUDA driver", state="failed", detail=f"{type(error).__name__}: {error}",
                advice="report this with the output of `tdcore doctor --json`",
            )
        ]  # fmt: skip


def checks_of(report: dict[str, Any]) -> list[Check]:
    """The lines of a report of `_core.cuda_report()`."""
    devices: list[dict[str, Any]] = report["devices"]
    found = [_driver(report)]
    for ordinal, device in enumerate(devices):
        found += _device(f"GPU {ordinal}", device)
    return [*found, _kernels(report)]


def _driver(report: dict[str, Any]) -> Check:
    reason = str(report["driver_reason"])
    if reason:
        fault, _, advice = reason.rpartition("; ")
        return Check(
            name="CUDA driver", state="missing", detail=fault or reason,
            advice=f"needed for GPU tensors only: {advice}",
        )  # fmt: skip
    count = len(report["devices"])
    detail = f"CUDA {report['driver_version']}, {count} device{'' if count == 1 else 's'}"
    return Check(name="CUDA driver", state="ok", detail=detail)


def _device(name: str, device: dict[str, Any]) -> list[Check]:
    """The lines of one device: name, commit and kernels; only the name if it cannot be used."""
    major, minor = divmod(int(device["architecture"]), 10)
    detail = f"{device['name']}, {human_bytes(device['memory_bytes'])}, compute capability {major}.{minor}"
    detail += ", a MIG slice" if device["mig"] else ""
    detail += ", shared through MPS" if device["mps"] else ""
    reason = str(device["reason"])
    if reason:
        fault, _, advice = reason.rpartition("; ")
        return [
            Check(
                name=name,
                state="failed",
                detail=f"{detail}: {fault or reason}",
                advice=advice if fault else "",
            )
        ]
    state, meaning = _COMMITS[device["commit"]]
    why = f" ({device['commit_reason']})" if device["commit_reason"] else ""
    return [
        Check(name=name, state="ok", detail=detail),
        Check(
            name=f"{name} commit", state="ok" if state == "ok" else "missing", detail=meaning + why,
            advice="nothing to do: when the training is killed, records that the GPU still copies are lost",
        ),
        Check(name=f"{name} kernels", state="ok", detail=_KERNELS[device["kernels"]]),
    ]  # fmt: skip


def _kernels(report: dict[str, Any]) -> Check:
    """The compiled kernels of this build, and the compiler for other devices."""
    carried, compiler = str(report["fatbin"]), str(report["nvrtc_version"])
    parts = [f"built for {carried}" if carried else "built without nvcc"]
    parts.append(f"NVRTC {compiler} at {report['nvrtc_path']}" if compiler else "no NVRTC")
    return Check(
        name="GPU kernels",
        state="ok" if carried or compiler else "missing",
        detail=", ".join(parts),
        advice='needed for GPU tensors only: pip install "tdcore-capture[cuda]"; before driver 580: [cuda12]',
    )
