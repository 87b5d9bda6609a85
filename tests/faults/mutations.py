"""Mutations: random changes in the folder of a run, as another user could make them.

`healthy` returns a run as bytes; `written` writes it to a folder and applies one to four mutations. Nothing
outside of that folder changes.
"""

from __future__ import annotations

import io
import json
import os
import random
import stat
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tests.trial.writer import RunWriter, index_bytes

__all__ = ["healthy", "written"]

_MAX_BYTES = 64 << 20  # of a file that is mutated again
_SLOW = "(a+)+$"
_ESCAPES = "w\x1b]0;title\x07\x1b[2J\x9b31m\nattempt 7: closed\u202egpj"
_TEXTS = [
    "",
    "x",
    "../x",
    "/etc/passwd",
    "a\0b",
    "w" * 70_000,
    "a" * 60 + "!",
    _ESCAPES,
    _SLOW,
    "(?!a)b",
    "(",
    "\ud800",
]
_NUMBERS: list[Any] = [
    -(2**63), -1, 0, 1, 2, 7, 9999, 10_000, 2**31 - 1, 2**31, 2**53, 2**62, 2**63 - 1, 2**64, 10**40,
    10**4000,
    float("nan"), float("inf"), -float("inf"), 0.5, 1e300,
]  # fmt: skip
_FLOATS = [float("nan"), float("inf"), -float("inf"), 0.0, -1.0, 1e-320, 1e308]
_PATTERNS = [
    _SLOW,
    "(?i)[\x00-\uffff]" * 50,
    "(?!a)b",
    "(",
    "x{1000}{1000}",
    "(a|a)*b",
    "\\1",
    ".*",
    "(" * 5000,
]


_IMPOSSIBLE = (
    OSError, ValueError, LookupError, TypeError, AttributeError, StopIteration, pa.ArrowException,
)  # fmt: skip


def healthy(scratch: Path) -> dict[str, bytes]:
    """Return the files of a run with two workers, rules, collections, notes, findings and requests."""
    with tempfile.TemporaryDirectory(dir=scratch) as folder:
        root = Path(folder) / "run"
        for worker in ("worker_0", "worker_1"):
            run = RunWriter(root, worker=worker, world_size=2, workers=["worker_0", "worker_1"])
            for step in range(2):
                run.add("fc.weight", np.linspace(-3, 3, 50, dtype=np.float32) + step, step=step)
                run.add("gradient/fc.weight", np.zeros((4, 5)), step=step, parts=2, kind="gradient")
                run.add("loss", 1.0 / (step + 1), step=step, kind="loss")
                run.add("a" * 60 + "!", np.zeros(3), step=step, kind="output", origin="ReLU")
                run.add("absent", None, step=step, status="absent", reason="no_backward")
                run.flush()
            run.end(last_step=1, reason="closed", drops={"ring_full": {"tensors": 1, "bytes": 8}})
        collection = {"include_regex": ["weight$"], "tensor_names": ["fc.weight"], "included": True}
        notes = {"frozen": ["fc.bias"], "never_called": {"fc2": "it was not called"}}
        attempt = {"collections": {"mine": collection, "weights": collection}, **notes}
        run.put("collections.json", {"format": 1, "attempts": {"0": attempt}})
        run.put("collections/worker_1.json", {"format": 1, "attempts": {"0": attempt}})
        run.write("findings/AllZero.jsonl", b'{"rule": "AllZero", "step": 1}\n')
        run.put("control/stop-0000.json", {"reason": "enough"})
        document = json.loads((root / "run.json").read_text())
        document["attempts"][0]["configuration"] = {
            "rules": ["all_zero:tensor_regex=.", "loss_not_decreasing"]
        }
        run.put("run.json", document)
        files = [path for path in root.rglob("*") if path.is_file()]
        return {path.relative_to(root).as_posix(): path.read_bytes() for path in sorted(files)}


def written(files: dict[str, bytes], root: Path, outside: Path, rng: random.Random) -> list[str]:
    """Write the run to `root`, mutate it, and return the applied mutations as text.

    outside: target of links.
    """
    for key, data in files.items():
        path = root / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    done = []
    for _ in range(rng.randint(1, 4)):
        mutation = rng.choice(_MUTATIONS)
        key = rng.choice(sorted(files))
        path = root / key
        try:
            done.append(f"{mutation.__name__.strip('_')} {key}: {mutation(path, outside, rng)}")
        except _IMPOSSIBLE:
            continue  # impossible after another mutation
    return done


# Files. -------------------------------------------------------------------------------------------------


def _bytes(path: Path) -> bytes:
    """Return the content of a small regular file. Raises ValueError for other files."""
    status = path.lstat()
    if not stat.S_ISREG(status.st_mode) or status.st_size > _MAX_BYTES:
        raise ValueError(path)
    return path.read_bytes()


def _cut(path: Path, outside: Path, rng: random.Random) -> str:
    data = _bytes(path)
    at = rng.randrange(len(data) + 1)
    path.write_bytes(data[:at])
    return str(at)


def _flip(path: Path, outside: Path, rng: random.Random) -> str:
    data = bytearray(_bytes(path))
    places = [rng.randrange(max(0, len(data) - rng.choice([3000, len(data)])), len(data)) for _ in range(4)]
    for at in places:
        data[at] ^= 1 << rng.randrange(8)
    path.write_bytes(bytes(data))
    return str(places)


def _junk(path: Path, outside: Path, rng: random.Random) -> str:
    _bytes(path)
    data = rng.randbytes(rng.choice([0, 1, 40, 3000]))
    if rng.random() < 0.3:
        data = b"PAR1" + data + len(data).to_bytes(4, "little") + b"PAR1"
    path.write_bytes(data)
    return str(len(data))


def _swap(path: Path, outside: Path, rng: random.Random) -> str:
    _bytes(path)
    others = [other for other in path.parents[0].rglob("*") if other.is_file() and other != path]
    other = rng.choice(others)
    path.write_bytes(_bytes(other))
    return other.name


def _huge(path: Path, outside: Path, rng: random.Random) -> str:
    _bytes(path)
    size = rng.choice([1 << 20, 100 << 20, 20 << 30, 1 << 40])
    with path.open("r+b") as file:
        file.truncate(size)
    return str(size)


def _odd(path: Path, outside: Path, rng: random.Random) -> str:
    kind = rng.choice(["fifo", "link", "loop", "device", "folder", "gone", "dangling", "proc"])
    path.unlink()
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind != "gone":
        device = Path("/dev/zero" if kind == "device" else "/proc/self/environ")
        targets = {"link": outside / "secret", "loop": path, "dangling": outside / "new"}
        path.symlink_to(targets.get(kind, device))
    return kind


def _folder(path: Path, outside: Path, rng: random.Random) -> str:
    place = path.parent
    if place.name in ("run", ""):
        raise ValueError
    kind = rng.choice(["link", "deep", "many", "fifo", "names"])
    if kind == "link":
        place.rename(place.with_name("moved"))
        place.symlink_to(rng.choice([outside, place.with_name("moved"), Path("/proc/self"), Path("/dev")]))
    elif kind == "deep":
        place.joinpath(*["d"] * 200).mkdir(parents=True)
    elif kind == "fifo":
        os.mkfifo(place / f"more{path.suffix}")
    else:
        for number in range(200):
            name = f"{number:04d}-{_ESCAPES.replace('/', '')}" if kind == "names" else f"{number:04d}"
            (place / f"{name}{path.suffix}").write_bytes(_bytes(path)[:100])
    return kind


# Contents of files. -------------------------------------------------------------------------------------


def _value(rng: random.Random, depth: int = 0) -> Any:
    kind = rng.randrange(8 if depth < 3 else 5)
    if kind < 2:
        return rng.choice(_NUMBERS)
    if kind < 4:
        return rng.choice(_TEXTS)
    if kind == 4:
        return rng.choice([None, True, False, [], {}])
    if kind == 5:
        return [_value(rng, depth + 1) for _ in range(rng.randrange(4))]
    if kind == 6:
        return {rng.choice(_TEXTS[:5]): _value(rng, depth + 1) for _ in range(rng.randrange(4))}
    deep: Any = []
    for _ in range(rng.choice([10, 70, 300])):
        deep = [deep]
    return deep


def _field(path: Path, outside: Path, rng: random.Random) -> str:
    """Change a value of a document, or add a field."""
    place: Any = json.loads(_bytes(path))
    document = place
    where: list[Any] = []
    while True:
        keys = list(place) if isinstance(place, dict) else list(range(len(place)))
        where.append(rng.choice(keys))
        inner = place[where[-1]]
        if not isinstance(inner, (dict, list)) or not inner or rng.random() < 0.25:
            break
        place = inner
    place[where[-1]] = value = _value(rng)
    if isinstance(place, dict) and rng.random() < 0.3:
        place[rng.choice(_TEXTS)] = _value(rng)
    text = json.dumps(document)
    if rng.random() < 0.1:
        text = text.replace(", ", ', "format": 1, ', 1)
    path.write_text(text + "\n")
    return f"{where} = {value!r:.60}"


def _pattern(path: Path, outside: Path, rng: random.Random) -> str:
    """Change a pattern of the run: in a collection, or in a rule that the run lists."""
    root = next(parent for parent in path.parents if (parent / "run.json").exists())
    pattern = rng.choice(_PATTERNS)
    key = rng.choice(["collections.json", "collections/worker_1.json", "run.json"])
    document = json.loads(_bytes(root / key))
    if key == "run.json":
        rules = [f"{rng.choice(['all_zero', 'loss_not_decreasing'])}:tensor_regex={pattern}"] * rng.choice(
            [1, 3]
        )
        document["attempts"][0]["configuration"] = {"rules": rules}
    else:
        for collection in document["attempts"]["0"]["collections"].values():
            collection["include_regex"] = [pattern] * rng.choice([1, 50])
    (root / key).write_text(json.dumps(document))
    return f"{key} {pattern[:20]!r}"


def _attempts(path: Path, outside: Path, rng: random.Random) -> str:
    """Add very many attempts, or attempts with odd values."""
    root = next(parent for parent in path.parents if (parent / "run.json").exists())
    document = json.loads(_bytes(root / "run.json"))
    numbers = rng.choice([range(99), range(50, 100, 7), [0, 0], [9999], [10_000], [-1]])
    if rng.random() < 0.04:  # reading each attempt takes a second
        numbers = rng.choice([range(9999), range(5000, 10_000, 7), range(20_000)])
    document["attempts"] = [{**document["attempts"][0], "attempt": number} for number in numbers]
    (root / "run.json").write_text(json.dumps(document))
    return str(numbers)


_COLUMNS: dict[str, list[Any]] = {
    **{name: [-(2**63), -1, 0, 1, 5, 2**31, 2**62, 2**63 - 1] for name in ("ticket", "step", "mode_step")},
    **{name: [-(2**63), -1, 0, 1, 2**62] for name in ("element_offset", "elements", "time_ns")},
    **{name: [-(2**31), -1, 0, 1, 5, 2**31 - 1] for name in ("seq", "call", "part", "parts", "attempt")},
    **{name: [None, -1, 0, 2**53, 2**62] for name in ("offset", "nbytes", "count", "nan_count")},
    "zero_count": [None, -1, 0, 2**53],
    **{name: [None, *_FLOATS] for name in ("min", "max", "mean", "m2", "abs_sum", "square_sum", "abs_max")},
    **dict.fromkeys(("name", "kind", "dtype", "reason", "worker", "origin"), _TEXTS[:-1]),
    "mode": ["TRAIN", "GLOBAL", "", "x"], "status": ["ok", "absent", "skipped", "lost", "?"],
    "segment": [None, "../../x", "0000-000000000000-000000000005.safetensors", "x\n"],
    "shape": [None, [], [-1], [2**62], [2**32, 2**32, 0], [1] * 100, [50]],
    "shard": [None, {"global_shape": [2**62], "offset": [-1], "partial": _ESCAPES},
              {"global_shape": [100], "offset": [50], "partial": None}, {"global_shape": [], "offset": [3]}],
    "log2_first": [None, -128, 127], "log2_counts": [None, [], [-1], [2**62] * 80],
}  # fmt: skip


def _rows(path: Path, outside: Path, rng: random.Random) -> str:
    """Change values in rows of an index file."""
    root = next(parent for parent in path.parents if (parent / "run.json").exists())
    index = rng.choice(sorted((root / "index").rglob("*.parquet")))
    rows = pq.read_table(io.BytesIO(_bytes(index))).to_pylist()
    done = []
    for _ in range(rng.randint(1, 4)):
        column = rng.choice(sorted(_COLUMNS))
        value = rng.choice(_COLUMNS[column])
        for row in [rng.choice(rows)] if rng.random() < 0.7 else rows:
            row[column] = value
        done.append(f"{column}={value!r:.40}")
    index.write_bytes(index_bytes(rows))
    return f"{index.name} {done}"


_Mutation = Callable[[Path, Path, random.Random], str]
_MUTATIONS: list[_Mutation] = [
    *(_cut, _flip, _flip, _junk, _swap, _huge, _odd, _odd, _folder),
    *(_field, _field, _field, _field, _pattern, _attempts, _rows, _rows, _rows),
]
