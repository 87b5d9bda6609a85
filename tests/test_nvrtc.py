"""The kernels as NVRTC compiles them: for every supported architecture, without a device."""

from __future__ import annotations

import subprocess

import pytest

import tdcore._core as _core

KERNELS = (b"tdcore_stats", b"tdcore_pack", b"tdcore_commit")


def compiled(architecture: int) -> bytes:
    try:
        return _core.compile_kernels(architecture)
    except RuntimeError as error:
        if "no NVRTC was found" in str(error):
            pytest.skip("needs NVRTC: pip install nvidia-cuda-nvrtc")
        raise


@pytest.mark.parametrize("architecture", [80, 90, 100])
def test_nvrtc_compiles_the_kernels(architecture: int) -> None:
    cubin = compiled(architecture)
    assert cubin.startswith(b"\x7fELF")
    assert [name for name in KERNELS if b".text." + name + b"\0" not in cubin] == []


def test_a_device_newer_than_the_compiler_gets_ptx() -> None:
    ptx = compiled(990)
    assert b".visible .entry tdcore_stats" in ptx


def test_a_device_that_is_too_old_is_said() -> None:
    compiled(80)
    with pytest.raises(RuntimeError, match="does not support devices as old as sm_35"):
        _core.compile_kernels(35)


def test_without_nvrtc_it_is_said_what_to_install() -> None:
    try:
        _core.compile_kernels(90, folders=["/nowhere"])
    except RuntimeError as error:
        assert 'pip install "tdcore-capture[cuda]"' in str(error)  # noqa: PT017  # a machine may have one of its own


def test_the_extension_links_nothing_of_cuda() -> None:
    linked = subprocess.run(["ldd", _core.__file__], capture_output=True, text=True, check=True).stdout
    assert not [name for name in ("libcuda", "libnvrtc") if name in linked]
