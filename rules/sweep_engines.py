"""Engines that run the tasks of a sweep: in this process, in processes of this machine, on Ray or on Dask.

An engine is a function (task, items, workers, cluster) -> generator of (position of the item, result), in
order of arrival. An item is a run of a sweep, or a part of a run (rules/spread/). Closing the generator ends
the tasks that it started. Ray and Dask get one task per item and schedule the tasks themselves. If a worker
dies, the result of its item is `task.failed(item, why)`. Threads: the caller's.
"""

from __future__ import annotations

import importlib
import os
import warnings
from collections.abc import Callable, Generator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from multiprocessing import get_context
from typing import Any, Protocol, TypeAlias, TypeVar

from tdcore.errors import ConfigError

__all__ = ["ENGINES", "EngineTask", "SweepEngine", "check_engine"]

Item = TypeVar("Item")
_Item = TypeVar("_Item", contravariant=True)
_Result = TypeVar("_Result", covariant=True)
Result = TypeVar("Result")


class EngineTask(Protocol[_Item, _Result]):
    """A function that pickle can store."""

    def __call__(self, item: _Item, /) -> _Result:
        """The result of an item. Raises no exception of the item."""
        ...

    def failed(self, item: _Item, why: str, /) -> _Result:
        """The result of an item whose task died, or whose result cannot be sent."""
        ...


Results: TypeAlias = "Generator[tuple[int, Result], None, None]"
SweepEngine: TypeAlias = "Callable[[EngineTask[Any, Any], list[Any], int | None, Any], Results[Any]]"


def serial(
    task: EngineTask[Item, Result], items: list[Item], workers: int | None, cluster: Any
) -> Results[Result]:
    """Run the tasks one after the other in this process."""
    _no_cluster("serial", cluster)
    for at, item in enumerate(items):
        yield at, task(item)


def processes(
    task: EngineTask[Item, Result], items: list[Item], workers: int | None, cluster: Any
) -> Results[Result]:
    """Run the tasks in spawned processes. Each process runs one task after the other."""
    _no_cluster("processes", cluster)
    number = min(workers or os.cpu_count() or 1, len(items))
    left = list(enumerate(items))
    while left:
        under_way: dict[Future[Result], tuple[int, Item]] = {}
        with _pool(number) as pool:
            try:
                while left or under_way:
                    while left and len(under_way) < number:
                        under_way[pool.submit(task, left[0][1])] = left[0]
                        del left[0]
                    done, _ = wait(under_way, return_when=FIRST_COMPLETED)
                    for future in done:
                        result = _result(task, under_way[future][1], future.result)
                        yield under_way.pop(future)[0], result
            except BrokenProcessPool:
                pass  # one of the running tasks killed its process: repeat each of these tasks alone
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise
        for at, item in under_way.values():
            yield at, _alone(task, item)


def _alone(task: EngineTask[Item, Result], item: Item) -> Result:
    with _pool(1) as pool:
        try:
            return _result(task, item, pool.submit(task, item).result)
        except BrokenProcessPool:
            return task.failed(item, "the process that judged it died (out of memory, or a crash)")


def _pool(number: int) -> ProcessPoolExecutor:
    return ProcessPoolExecutor(number, mp_context=get_context("spawn"), initializer=one_thread)


def one_thread() -> None:
    """Limit libraries to one thread, because there is one process per CPU."""
    import pyarrow as pa

    pa.set_cpu_count(1)


def ray(
    task: EngineTask[Item, Result], items: list[Item], workers: int | None, cluster: Any
) -> Results[Result]:
    """Run the tasks on Ray, with one CPU each."""
    ray = _module("ray", "ray")
    own = not ray.is_initialized()
    address = cluster or os.environ.get("RAY_ADDRESS") or "local"
    if own:
        ray.init(
            address=address,
            num_cpus=workers if address == "local" else None,
            include_dashboard=False if address == "local" else None,
            log_to_driver=False,
        )
    elif cluster is not None:
        raise ConfigError("this process is connected to a Ray cluster already; leave cluster out to use it")
    under_way: dict[Any, tuple[int, Item]] = {}
    try:
        judge = ray.remote(num_cpus=1, max_retries=1)(_judge)
        shared = ray.put(task)
        left = list(enumerate(items))
        while left or under_way:
            while left and (workers is None or len(under_way) < workers):
                at, item = left.pop(0)
                under_way[judge.remote(shared, item)] = (at, item)
            done, _ = ray.wait(list(under_way), num_returns=1)
            for reference in done:
                at, item = under_way.pop(reference)
                yield at, _result(task, item, partial(ray.get, reference))
    finally:
        for reference in under_way:  # the caller has closed the generator
            ray.cancel(reference)
        if own:
            ray.shutdown()


def dask(
    task: EngineTask[Item, Result], items: list[Item], workers: int | None, cluster: Any
) -> Results[Result]:
    """Run the tasks on Dask's distributed scheduler."""
    distributed = _module("distributed", "dask")
    own = not isinstance(cluster, distributed.Client)
    client = _dask_client(distributed, cluster, workers, len(items)) if own else cluster
    own = own and client is not _known_client(distributed)
    try:
        left = list(enumerate(items))
        under_way: dict[Any, tuple[int, Item]] = {}
        arrivals = distributed.as_completed(loop=client.loop)
        while left or under_way:
            while left and (workers is None or len(under_way) < workers):
                at, item = left.pop(0)
                future = client.submit(_judge, task, item, pure=False)
                under_way[future] = (at, item)
                arrivals.add(future)
            future = next(arrivals)
            at, item = under_way.pop(future)
            yield at, _result(task, item, future.result)
    finally:
        if own:
            local = client.cluster
            client.close()
            if local is not None:
                local.close()


def _dask_client(distributed: Any, cluster: Any, workers: int | None, items: int) -> Any:
    """The current client; or a client of the cluster at an address; or of a new cluster on this machine."""
    if cluster is not None:
        return distributed.Client(cluster, set_as_default=False)
    known = _known_client(distributed)
    if known is not None:
        return known
    number = min(workers or os.cpu_count() or 1, items)
    local = distributed.LocalCluster(
        n_workers=number, threads_per_worker=1, processes=True, dashboard_address=":0"
    )
    return distributed.Client(local, set_as_default=False)


def _known_client(distributed: Any) -> Any:
    try:
        return distributed.default_client()
    except ValueError:
        return None


def _judge(task: EngineTask[Item, Result], item: Item) -> Result:
    """Run the task. A module-level function, because clusters send functions by name."""
    return task(item)


def _result(task: EngineTask[Item, Result], item: Item, result: Callable[[], Result]) -> Result:
    try:
        return result()
    except BrokenProcessPool:  # another item may be the cause
        raise
    except Exception as error:  # a worker died, or a task or result cannot be sent
        return task.failed(item, f"{type(error).__name__}: {error}".splitlines()[0])


def _module(name: str, extra: str) -> Any:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # hide warnings during their imports
            return importlib.import_module(name)
    except ImportError as error:
        raise ConfigError(
            f'engine="{extra}" needs {name}, which is not installed: pip install "tdcore-capture[{extra}]"'
        ) from error


def _no_cluster(engine: str, cluster: Any) -> None:
    if cluster is not None:
        raise ConfigError(f"cluster is only for the engines ray and dask; leave it out for engine={engine!r}")


ENGINES: Mapping[str, SweepEngine] = {"processes": processes, "ray": ray, "dask": dask, "serial": serial}


def check_engine(engine: str, workers: int | None) -> None:
    """Raise ConfigError for an unknown engine or an invalid number of workers."""
    if engine not in ENGINES:
        raise ConfigError(f"engine must be one of {', '.join(sorted(ENGINES))}, got {engine!r}")
    if workers is not None and workers < 1:
        raise ConfigError(f"workers must be at least 1, got {workers}")
