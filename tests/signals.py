"""Signal dispositions for children of tests, whatever the tests themselves have inherited.

A job in the background (`make test &`, nohup, cron) ignores SIGINT, SIGQUIT or SIGHUP, and every program that
it starts inherits that: a test that sends such a signal to its child would wait for its end in vain.
Threads: the main thread only, as Python requires.
"""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Iterator, Sequence

__all__ = ["IN_THE_BACKGROUND", "default_signals", "ignored_signals"]

IN_THE_BACKGROUND = (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP)  # what shells and nohup have a job ignore
_MEANT = (*IN_THE_BACKGROUND, signal.SIGTERM, signal.SIGCHLD)


@contextlib.contextmanager
def default_signals() -> Iterator[None]:
    """Programs that are started within have these signals at their defaults.

    A signal that this process ignores is still without effect on it: a handler that does nothing becomes the
    default in a program.
    """
    ignored = [each for each in _MEANT if signal.getsignal(each) is signal.SIG_IGN]
    with _dispositions(lambda *_: None, ignored):
        yield


@contextlib.contextmanager
def ignored_signals(*signals: signal.Signals) -> Iterator[None]:
    """Programs that are started within ignore these signals, as in the background. So does this process."""
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
