"""Plan of the measurements: for each question, the groups of measurements that are compared."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from benchmarks.s3.loop import WAYS
from benchmarks.s3.opening import READERS
from benchmarks.s3.peers import PEERS
from benchmarks.s3.put import ALONE, OBJECT_BYTES, OURS
from benchmarks.s3.stall import PLACES

QUESTIONS = ("put", "loop", "stall", "open")
BYTES_PER_SECOND = 80e6
CONCURRENCY = 8


@dataclass(frozen=True, kw_only=True)
class Size:
    """Sizes of the measurements. rounds: number of repeats of each measurement, in turn with the others."""

    rounds: int
    servers: tuple[str, ...]  # that are put to
    put_bytes: int
    slow_put_bytes: int  # to a server that is itself slow
    loop_seconds: float
    captures: int
    workers: tuple[int, ...]
    files: int  # number of index files of each worker


FULL = Size(
    rounds=5,
    servers=("rclone http", "rclone https", "moto http"),
    put_bytes=1 << 30,
    slow_put_bytes=256 << 20,
    loop_seconds=12.0,
    captures=40,
    workers=(64, 8),
    files=16,
)
QUICK = Size(
    rounds=1,
    servers=("rclone http",),
    put_bytes=2 * OBJECT_BYTES,
    slow_put_bytes=OBJECT_BYTES,
    loop_seconds=0.5,
    captures=3,
    workers=(4, 2),
    files=2,
)


@dataclass(frozen=True, kw_only=True)
class Group:
    """Measurements that alternate. server: one of servers.SERVERS. idle: it runs only on an idle core."""

    question: str
    name: str
    server: str
    members: tuple[str, ...]
    idle: bool = False
    workers: int = 0  # number of workers of the run that is opened


def missing_peers() -> dict[str, str]:
    """Peers that cannot be measured here, and how to install them."""
    return {name: why for name, peer in PEERS.items() if (why := peer.missing())}


def groups(questions: tuple[str, ...] | list[str], size: Size) -> Iterator[Group]:
    """The groups of these questions, in order."""
    absent = missing_peers()
    clients = tuple(name for name in (*OURS, *PEERS) if name not in absent)
    ways = tuple(name for name in WAYS if not ("boto3" in name and "boto3, threads" in absent))
    if "put" in questions:
        for server in size.servers:
            yield Group(question="put", name=server, server=server, members=clients)
    if "loop" in questions:
        yield Group(question="loop", name="80 MB/s", server="rclone http", members=ways, idle=True)
    if "stall" in questions:
        name = "32 MB in 40 tensors, 80 MB/s"
        yield Group(question="stall", name=name, server="rclone http", members=tuple(PLACES), idle=True)
    if "open" in questions:
        for workers in size.workers:
            name = f"{workers} workers, {workers * size.files} index files"
            yield Group(question="open", name=name, server="stub http", members=READERS, workers=workers)


def job(group: Group, member: str, size: Size, place: dict[str, Any]) -> dict[str, Any]:
    """The job for the worker. place: url, folder, prefix, endpoint, bucket, ca_bundle of the measurement."""
    if group.question == "put":
        names = ("url", "prefix", "endpoint", "bucket", "ca_bundle")
        slow = group.server.startswith("moto")
        return {name: place[name] for name in names} | {
            "tool": member,
            "total_bytes": 0 if member in ALONE.values() else size.slow_put_bytes if slow else size.put_bytes,
            "concurrency": CONCURRENCY,
        }
    if group.question == "loop":
        names = ("url", "folder", "prefix", "endpoint", "bucket")
        return {name: place[name] for name in names} | {
            "way": member,
            "seconds": size.loop_seconds,
            "bytes_per_second": BYTES_PER_SECOND,
        }
    if group.question == "stall":
        return {name: place[name] for name in ("url", "folder")} | {
            "place": member,
            "captures": size.captures,
            "bytes_per_second": BYTES_PER_SECOND,
        }
    return {"reader": member, "place": place["folder" if member == "tdcore, folder" else "url"]}
