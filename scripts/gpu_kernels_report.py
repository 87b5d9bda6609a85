"""Report the compiled GPU kernels: registers, spills, shared memory, wide loads.

    python scripts/gpu_kernels_report.py           print the tables
    python scripts/gpu_kernels_report.py --write   write the tables into docs/gpu-kernels.md
    python scripts/gpu_kernels_report.py --check   fail if a kernel spills, or has no 16-byte loads or stores

Needs nvcc (12.9 or newer for sm_103). With cuobjdump in PATH (from the toolkit, or from `pip install
nvidia-cuda-cuobjdump nvidia-cuda-nvdisasm`) machine code is inspected, otherwise PTX.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "csrc" / "cuda" / "kernels.cuh"
NVCC = ("nvcc", "-std=c++20", f"-I{ROOT / 'csrc'}")
PAGE = ROOT / "docs" / "gpu-kernels.md"
BEGIN, END = "<!-- report -->", "<!-- end of report -->"
ARCHITECTURES = ("75", "80", "86", "90", "100", "103", "120")
REGISTERS = 65536  # of a multiprocessor
SHARED_KIB = {"75": 64, "80": 164, "86": 100, "90": 228, "100": 228, "103": 228, "120": 100}
KERNELS = 5
SMALL = ("tdcore_collect", "tdcore_commit", "tdcore_gate")  # kernels of one block, which read no tensors
WARPS = {"75": 32, "80": 64, "86": 48, "90": 64, "100": 64, "103": 64, "120": 48}


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """One kernel on one architecture."""

    name: str
    architecture: str
    registers: int
    stack_bytes: int
    spill_bytes: int
    shared_bytes: int
    wide_loads: int
    wide_stores: int

    @property
    def blocks(self) -> int:
        """Number of resident blocks of 256 threads per multiprocessor."""
        by_registers = REGISTERS // (256 * -(-self.registers // 8) * 8)
        by_shared = SHARED_KIB[self.architecture] * 1024 // (self.shared_bytes + 1024)
        return min(by_registers, by_shared, WARPS[self.architecture] * 32 // 256)


def compile_for(architecture: str, folder: Path) -> list[Kernel]:
    """Compile the kernels for one architecture, and read the reports of ptxas and of the machine code."""
    unit = folder / "kernels.cu"
    unit.write_text(f'#include "{SOURCE}"\n')
    image = folder / f"kernels_{architecture}.cubin"
    command = [
        *NVCC,
        f"-arch=sm_{architecture}",
        "-Xptxas",
        "-v",
        "-cubin",
        "-o",
        str(image),
        str(unit),
    ]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    if run.returncode != 0:
        raise SystemExit(
            f"nvcc does not compile the kernels for sm_{architecture}:\n{run.stdout}{run.stderr}"
        )
    code = code_of(architecture, image, unit, folder)
    found = re.findall(
        r"Compiling entry function '(\w+)'.*?(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes "
        r"spill loads.*?Used (\d+) registers([^\n]*)",
        run.stdout + run.stderr,
        re.DOTALL,
    )
    kernels = []
    for name, stack, stores, loads, registers, rest in found:
        shared = re.search(r"(\d+) bytes smem", rest)
        kernels.append(
            Kernel(
                name=name,
                architecture=architecture,
                registers=int(registers),
                stack_bytes=int(stack),
                spill_bytes=int(stores) + int(loads),
                shared_bytes=int(shared.group(1)) if shared else 0,
                wide_loads=len(
                    re.findall(r"LDG\.E\.128|ld\.global\.v4\.u32|ld\.global\.v4\.b32", code[name])
                ),
                wide_stores=len(
                    re.findall(r"STG\.E\.128|st\.global\.v4\.u32|st\.global\.v4\.b32", code[name])
                ),
            )
        )
    if len(kernels) != KERNELS:
        raise SystemExit(f"ptxas named {len(kernels)} kernels for sm_{architecture} instead of {KERNELS}")
    return sorted(kernels, key=lambda kernel: kernel.name)


def code_of(architecture: str, image: Path, unit: Path, folder: Path) -> dict[str, str]:
    """Machine code of each kernel, or its PTX if there is no disassembler."""
    if shutil.which("cuobjdump"):
        text = subprocess.run(
            ["cuobjdump", "-sass", str(image)], capture_output=True, text=True, check=True
        ).stdout
        parts = re.split(r"Function : (\w+)", text)
    else:
        ptx = folder / f"kernels_{architecture}.ptx"
        command = [*NVCC, f"-arch=sm_{architecture}", "-ptx", "-o", str(ptx), str(unit)]
        subprocess.run(command, capture_output=True, check=True)
        parts = re.split(r"\.entry (\w+)", ptx.read_text())
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def table(kernels: list[Kernel]) -> str:
    """The report as Markdown."""
    release = subprocess.run(["nvcc", "--version"], capture_output=True, text=True, check=True).stdout
    version = re.search(r"V([\d.]+)", release)
    code = "machine code" if shutil.which("cuobjdump") else "PTX"
    lines = [
        f"nvcc {version.group(1) if version else '?'}; loads and stores of 16 bytes counted in {code}.",
        "",
        "| kernel | for | registers | stack | spilled | shared | blocks, warps | 16-byte loads, stores |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for kernel in kernels:
        resident = f"{kernel.blocks}, {kernel.blocks * 8}" if kernel.name not in SMALL else "-"
        lines.append(
            f"| {kernel.name} | sm_{kernel.architecture} | {kernel.registers} | {kernel.stack_bytes} B | "
            f"{kernel.spill_bytes} B | {kernel.shared_bytes} B | {resident} | "
            f"{kernel.wide_loads}, {kernel.wide_stores} |"
        )
    return "\n".join(lines)


def faults(kernels: list[Kernel]) -> list[str]:
    """Descriptions of spills and of missing wide accesses."""
    found = []
    for kernel in kernels:
        where = f"{kernel.name} on sm_{kernel.architecture}"
        if kernel.spill_bytes or kernel.stack_bytes:
            found.append(
                f"{where} spills {kernel.spill_bytes} bytes and has a stack of {kernel.stack_bytes} bytes"
            )
        if kernel.name not in SMALL and kernel.wide_loads == 0:
            found.append(f"{where} has no load of 16 bytes")
        if kernel.name == "tdcore_pack" and kernel.wide_stores == 0:
            found.append(f"{where} has no store of 16 bytes")
    return found


def main() -> int:
    """Run the report."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--write", action="store_true", help="update docs/gpu-kernels.md")
    parser.add_argument("--check", action="store_true", help="fail on spills and missing wide accesses")
    parser.add_argument("--architecture", action="append", choices=ARCHITECTURES, help="only these")
    options = parser.parse_args()
    if not shutil.which("nvcc"):
        raise SystemExit("nvcc is not in PATH: the kernels cannot be compiled here")
    with tempfile.TemporaryDirectory() as folder:
        kernels = [k for a in options.architecture or ARCHITECTURES for k in compile_for(a, Path(folder))]
    report = table(kernels)
    print(report)
    if options.write:
        text = PAGE.read_text()
        before, after = text.split(BEGIN)[0], text.split(END)[1]
        PAGE.write_text(f"{before}{BEGIN}\n{report}\n{END}{after}")
    found = faults(kernels)
    for fault in found:
        print(fault, file=sys.stderr)
    return 1 if options.check and found else 0


if __name__ == "__main__":
    sys.exit(main())
