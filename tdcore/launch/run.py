"""`tdcore run [options] train.py args...`: record the training of a script without changes to the script.

The same command is `python -m tdcore.run`, for torchrun: `torchrun --nproc-per-node 2 -m tdcore.run
train.py`. The script runs in this process as with python (script.py). After its import of torch,
hooks/pytorch attaches a hook to its training. A failure inside tdcore does not end the script. Threads: the
main thread.
"""

from __future__ import annotations

import argparse
import atexit
import contextlib
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tdcore.config.defaults import COLLECTIONS, SAVE_INTERVAL
from tdcore.config.hook_config import HookConfig
from tdcore.config.hook_file import load_hook_file
from tdcore.config.hook_json import find_hook_file
from tdcore.config.reduction_config import ReductionConfig
from tdcore.config.save_config import SaveConfig
from tdcore.config.settings import disabled
from tdcore.errors import ConfigError, StopTraining
from tdcore.launch.import_watch import after_import
from tdcore.launch.script import Script

if TYPE_CHECKING:
    from tdcore.hooks.pytorch.auto_attach import Attachment
    from tdcore.launch.run_summary import RunSummary

__all__ = ["chosen_config", "main"]

_EXAMPLES = """\
Examples:
  tdcore run train.py --lr 0.1
  tdcore run --out runs/demo --save-interval 50 train.py --lr 0.1
  tdcore run --rule vanishing_gradient -m package.train
  torchrun --nproc-per-node 2 -m tdcore.run train.py

Options of tdcore come before the script. All arguments after the script are passed to the script.
Exit codes: 0 and others are the codes of the script. 2 also for wrong usage, before the script starts."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command. Exits with the exit code of the script."""
    options = _parsed(sys.argv[1:] if arguments is None else arguments)
    try:
        script = Script(options.target, options.arguments, module=options.module)
        config = None if disabled() else _config(options)
    except ConfigError as error:
        print(f"tdcore: {error}", file=sys.stderr)
        sys.exit(2)
    if config is None:
        if not options.quiet:
            _say("TDCORE_DISABLED is set: nothing is recorded")
        script.run()
        return
    recording = _Recording(config, quiet=options.quiet)
    after_import("torch", recording.begin)
    atexit.register(recording.end)  # before callbacks of the script, so that it is called last
    script.run(_explain)


class _Recording:
    """The recording of the script, from its import of torch to its end. quiet: prints errors only."""

    def __init__(self, config: HookConfig, *, quiet: bool) -> None:
        self._config = config
        self._quiet = quiet
        self._attachment: Attachment | None = None
        self._pid = os.getpid()
        self._failed = False
        self._folder = os.getcwd()
        self._summary: RunSummary | None = None

    def begin(self) -> None:
        """Attach to the training; called after the import of torch."""
        try:
            from tdcore.hooks import current
            from tdcore.hooks.pytorch.auto_attach import Attachment

            current.offer(self._hook)
            self._attachment = Attachment(self._hook, _say_nothing if self._quiet else _say, _say)
        except Exception as error:
            self._failed = True
            _say(f"nothing is recorded: {error}; the script goes on")

    def end(self) -> None:
        """Print the summary; called at the end of the script, also after an exception."""
        if self._quiet or os.getpid() != self._pid:
            return
        found = self._attachment is not None and self._attachment.found
        if self._summary is not None:
            self._say_summary(self._summary)
        elif not found and not self._failed:
            _say(
                "no training was found: no optimizer or backward() had parameters of a module that was called"
            )

    def _hook(self) -> Any:
        from tdcore.hooks.pytorch.hook import Hook

        rules = self._config.rules
        hook = Hook.from_config(replace(self._config, rules=()), rules=rules)
        with contextlib.suppress(Exception):  # a failure of the summary is not important
            from tdcore.launch.run_summary import RunSummary

            self._summary = RunSummary(hook, self._folder)
        return hook

    @staticmethod
    def _say_summary(summary: RunSummary) -> None:
        """Print the summary. The hook is closed: atexit runs the callback that was registered first last."""
        with contextlib.suppress(Exception):  # the script's exit code must not change
            for line in summary.lines():
                _say(line)


def _say(text: str) -> None:
    with contextlib.suppress(OSError, ValueError, AttributeError):  # the script has closed or replaced stderr
        sys.stderr.write(f"tdcore run: {text}\n")
        sys.stderr.flush()


def _say_nothing(text: str) -> None:
    """Print nothing, for --quiet."""


def _explain(error: BaseException) -> str | None:
    """Message for a training that a stop request has ended, in place of a traceback."""
    return f"tdcore run: the training was stopped: {error}" if isinstance(error, StopTraining) else None


def chosen_config(arguments: Sequence[str]) -> HookConfig:
    """The configuration of the command with these arguments. Raises ConfigError."""
    return _config(_parsed(arguments))


def _parsed(arguments: Sequence[str]) -> argparse.Namespace:
    options = _parser().parse_args(arguments)
    rest = arguments[len(arguments) - len(options.arguments) - 1 :]
    # "--" after the script is an argument of the script. argparse removes the first "--", so it is restored.
    if rest[0] == "--":
        options.arguments = list(rest)
    return options


def _config(options: argparse.Namespace) -> HookConfig:
    """Merge the sources: the command line, then the file, then the defaults of td.watch()."""
    path = options.config or find_hook_file()
    name = options.target if options.module else os.path.splitext(os.path.basename(options.target))[0]
    out = options.out or os.path.join("runs", name)
    if path is None:
        config = HookConfig(
            out_dir=out,
            save_config=SaveConfig(save_interval=SAVE_INTERVAL),
            reduction_config=ReductionConfig(),
            include_collections=COLLECTIONS,
        )
    else:
        config = load_hook_file(path, out_dir=out)
    changes: dict[str, Any] = {}
    if options.out:
        changes["out_dir"] = options.out
    if options.save_interval is not None:
        changes["save_config"] = SaveConfig(save_interval=options.save_interval)
    if options.collections is not None:
        changes["include_collections"] = _parts(options.collections)
    if options.workers is not None:
        changes["include_workers"] = options.workers
    if options.rule:
        changes["rules"] = (*config.rules, *options.rule)
    config = replace(config, **changes)
    if "://" not in config.out_dir:  # the script may change its folder
        config = replace(config, out_dir=os.path.abspath(config.out_dir))
    if config.rules:
        from tdcore.hooks.rule_capture import without_default
        from tdcore.rules.loading import load_rules

        load_rules(without_default(config.rules))
    return config


def _parts(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="tdcore run",
        description="Run a training script without changes and record its training.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--out", metavar="DIR", help="folder or s3://bucket/prefix of the run (default: runs/<script>)")
    add("--config", metavar="FILE", help="YAML or JSON file with the configuration (docs/run.md)")
    add("--save-interval", type=int, metavar="N", help=f"save every N steps (default: {SAVE_INTERVAL})")
    add(
        "--collections",
        metavar="NAME,...",
        help=f"collections to capture (default:  {','.join(COLLECTIONS)})",
    )
    add(
        "--workers", metavar="one|all", help="the ranks of a distributed training that capture (default: one)"
    )
    add(
        "--rule",
        "-r",
        action="append",
        metavar="NAME[:k=v,...]",
        help="also capture the tensors that this rule needs; default: the tensors for tdcore diagnose",
    )
    add("--quiet", "-q", action="store_true", help="print only errors on stderr")
    add("--module", "-m", action="store_true", help="the script is the dotted name of a module")
    add("target", metavar="SCRIPT", help="the script, or with -m a module")
    add("arguments", nargs=argparse.REMAINDER, metavar="ARGS", help="arguments of the script")
    return parser
