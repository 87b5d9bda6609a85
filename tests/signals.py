"""Signal dispositions for child processes of tests, independent of those that the tests have inherited.

A background job (`make test &`, nohup, cron) ignores SIGINT, SIGQUIT or SIGHUP, and every program that it
starts inherits this. A test that sends such a signal to its child would wait forever. Threads: the main
thread only, as Python requires.
"""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Iterator, Sequence

__all__ = ["IN_THE_BACKGROUND", "default_signals", "ignored_signals"]

# signals that shells and nohup make a job ignore
IN_THE_BACKGROUND = (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP)
_MEANT = (*IN_THE_BACKGROUND, signal.SIGTERM, signal.SIGCHLD)


@contextlib.contextmanager
def default_signals() -> Iterator[None]:
    """Start programs with default dispositions of these signals within the block.

    A signal that this process ignores has no effect on it within the block either: its handler does nothing,
    and becomes the default disposition in a program.
    """
    ignored = [each for each in _MEANT if signal.getsignal(each) is signal.SIG_IGN]
    with _dispositions(lambda *_: None, ignored):
        yield


@contextlib.contextmanager
def ignored_signals(*signals: signal.Signals) -> Iterator[None]:
    """Ignore these signals, in this process and in programs that start within the block."""
    with _dispositions(signal.SIG_IGN, signals or IN_THE_BACKGROUND):
        yield


@contextlib.contextmanager
def _dispositions(
    handler: Callable[..., object] | signal.Handlers, signals: Sequence[signal.Signals]
) -> Iterator[None]:
    before = {each: signal.signal(each, handler) for each in signals}
    try:
        yield
    finally:
        for each, was in before.items():
            signal.signal(each, signal.SIG_DFL if was is None else was)
