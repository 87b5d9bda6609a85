"""Count the machine instructions per element of the statistics kernel's fast pass, by type of instruction.

    python scripts/gpu_instructions.py           print the table
    python scripts/gpu_instructions.py --write   write the table into docs/gpu-kernels.md
    python scripts/gpu_instructions.py --check   fail if float32 needs many float64 instructions where their
                                                 units are few

Needs nvcc, and cuobjdump in PATH for machine code; without cuobjdump the instructions of PTX are counted. A
probe sums 8 vectors of 16 bytes in one function and 16 in another one. The difference is the work for 8
vectors, without the work for each tile.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "gpu-kernels.md"
BEGIN, END = "<!-- instructions -->", "<!-- end of instructions -->"
ARCHITECTURES = ("80", "86")  # with many and with few units for float64
FEWER, MORE = 8, 16  # vectors
MOST_FLOAT64 = 0.5  # per float32 element, with few units for float64
ELEMENT_TYPES = {  # name: class of the sums, elements per vector
    "float32": ("Float32Sums", 4),
    "float64": ("WideSums<F64Element>", 2),
    "bfloat16": ("ShortSums<BF16Element>", 8),
    "float16": ("ShortSums<F16Element>", 8),
    "int32": ("WideSums<I32Element>", 4),
    "int8": ("SmallSums<I8Element>", 16),
}
# A conversion between float32 and float64 uses the units for float64.
CLASSES = {
    "float64": r"D(ADD|MUL|FMA|SETP|MNMX)\b|F2F\.F64|F2F\.F32\.F64|I2F\.F64|F2I\.\S*F64|[a-z.]+\.f64\b",
    "float32": r"F(ADD|MUL|FMA|MNMX|SETP|SEL)|[a-z.]+\.f32\b",
    "shared memory": r"LDS|STS|ATOMS|(ld|st|atom)\.shared",
    "global memory": r"LDG|STG|(ld|st)\.global",
}
PROBE = """#include "cuda/kernels.cuh"
using namespace tdcore;
using namespace tdcore::device;
template <class Sums, u32 kVectors>
TDCORE_DEVICE void probe(const u8* data, Moments* out) {
  constexpr u32 kBytes = sizeof(typename Sums::Raw);
  __shared__ u8 histogram[kLog2Bins * kThreads];
  const Bins bins = Bins::of_thread(histogram);
  Sums sums;
  sums.pivot = Sums::first(load_vector<kBytes>(data, kPerVector<kBytes>));
  TDCORE_UNROLL
  for (u32 i = 0; i < kVectors; ++i)
    sums.add(load_vector<kBytes>(data + (i * kThreads + threadIdx.x) * 16, kPerVector<kBytes>), bins);
  out[threadIdx.x] = sums.lane(1);
  out[threadIdx.x].min += histogram[threadIdx.x];
}
"""


def functions_of(architecture: str) -> dict[str, str]:
    """Machine code, or PTX, of each function of the probe."""
    text = PROBE
    for name, (sums, _) in ELEMENT_TYPES.items():
        for vectors in (FEWER, MORE):
            text += (
                f'extern "C" __global__ void {name}_{vectors}(const u8* data, Moments* out) '
                f"{{ probe<{sums}, {vectors}>(data, out); }}\n"
            )
    disassembler = shutil.which("cuobjdump")
    with tempfile.TemporaryDirectory() as folder:
        unit, image = Path(folder, "probe.cu"), Path(folder, "probe.image")
        unit.write_text(text)
        kind = "-cubin" if disassembler else "-ptx"
        command = [
            "nvcc",
            "-std=c++20",
            f"-I{ROOT / 'csrc'}",
            "--diag-suppress=177",
            f"-arch=sm_{architecture}",
        ]
        subprocess.run([*command, kind, "-o", str(image), str(unit)], check=True)
        if disassembler is None:
            parts = re.split(r"\.entry (\w+)", image.read_text())
        else:
            dump = [disassembler, "-sass", str(image)]
            code = subprocess.run(dump, capture_output=True, text=True, check=True).stdout
            parts = re.split(r"Function : (\w+)", code)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def instructions_in(code: str) -> Counter[str]:
    """Number of instructions of each class."""
    found: Counter[str] = Counter()
    machine_code = r"/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][\w.]*)"
    ptx = r"^\s+(?:@%?\w+\s+)?([a-z][\w.:]*)\s.*;$"
    for name in re.findall(machine_code, code) or re.findall(ptx, code, re.MULTILINE):
        if name != "NOP":
            found[next((one for one, pattern in CLASSES.items() if re.match(pattern, name)), "other")] += 1
    return found


def per_element(architecture: str) -> dict[str, dict[str, float]]:
    """Count the instructions per element, by element type and by class of instruction."""
    functions = functions_of(architecture)
    counts = {}
    for name, (_, each) in ELEMENT_TYPES.items():
        fewer, more = (instructions_in(functions[f"{name}_{vectors}"]) for vectors in (FEWER, MORE))
        counts[name] = {
            one: (more[one] - fewer[one]) / ((MORE - FEWER) * each) for one in (*CLASSES, "other")
        }
    return counts


def table(counts: dict[str, dict[str, dict[str, float]]]) -> str:
    """The counts of each architecture as Markdown."""
    code = "Machine instructions" if shutil.which("cuobjdump") else "Instructions of PTX"
    lines = [
        f"{code} per element:",
        "",
        f"| element | for | {' | '.join(CLASSES)} | other | all |",
        "|---|---|" + "---|" * (len(CLASSES) + 2),
    ]
    for architecture, types in counts.items():
        for name, classes in types.items():
            numbers = " | ".join(f"{count:.1f}" for count in (*classes.values(), sum(classes.values())))
            lines.append(f"| {name} | sm_{architecture} | {numbers} |")
    return "\n".join(lines)


def main() -> int:
    """Print, write or check the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--write", action="store_true", help="update docs/gpu-kernels.md")
    parser.add_argument(
        "--check", action="store_true", help="fail if float32 needs many float64 instructions"
    )
    options = parser.parse_args()
    if not shutil.which("nvcc"):
        raise SystemExit("nvcc is not in PATH: the kernels cannot be compiled here")
    counts = {architecture: per_element(architecture) for architecture in ARCHITECTURES}
    report = table(counts)
    print(report)
    if options.write:
        text = PAGE.read_text()
        before, after = text.split(BEGIN)[0], text.split(END)[1]
        PAGE.write_text(f"{before}{BEGIN}\n{report}\n{END}{after}")
    return 1 if options.check and counts[ARCHITECTURES[1]]["float32"]["float64"] > MOST_FLOAT64 else 0


if __name__ == "__main__":
    sys.exit(main())
