"""HookConfig: all settings of a hook. A frozen value, safe in any thread.

hook_file.py reads it from YAML or JSON, hook_json.py from the JSON of smdebug.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tdcore.config import checks
from tdcore.config.collection_config import CollectionConfig
from tdcore.config.profiler_config import ProfilerConfig
from tdcore.config.reduction_config import ReductionConfig
from tdcore.config.save_config import SaveConfig
from tdcore.config.workers import parse_workers
from tdcore.errors import ConfigError
from tdcore.text.short_repr import settings_repr

__all__ = ["HookConfig"]

_log = logging.getLogger("tdcore")


@dataclass(frozen=True, slots=True, kw_only=True)
class HookConfig:
    """All settings of a hook, from arguments, a file or the environment.

    Attributes:
        out_dir: Local folder or URL of the run.
        include_workers: "one" (rank 0 only), "all", or a list of ranks or worker names, which is stored as a
            tuple of names.
        collections: Collections with their own settings. They are saved even if include_collections does not
            name them.
        dry_run: Count tensors and bytes, and write nothing.
        rules: Rules of the run as text. The rules are only stored in run.json, for `tdcore rules run`
            (hooks/rule_capture.py adds their collections).
        export_tensorboard: Export the run to TensorBoard while it is written (docs/export.md).
        tensorboard_dir: Folder for the exports of several runs, in folders with the names of the runs.
            None: the folder `tensorboard` in out_dir.
        profiler_config: Steps that are profiled. None: those of the file that profiler_json.py finds.
    """

    out_dir: str
    dry_run: bool = False
    save_config: SaveConfig = field(default_factory=lambda: SaveConfig())
    reduction_config: ReductionConfig | None = None
    include_regex: Sequence[str] = ()
    include_collections: Sequence[str] = ()
    save_all: bool = False
    include_workers: str | Iterable[int | str] = "one"
    collections: Sequence[CollectionConfig] = ()
    rules: Sequence[str] = ()
    profiler_config: ProfilerConfig | None = None
    export_tensorboard: bool = False
    tensorboard_dir: str | None = None

    __repr__ = settings_repr

    def __post_init__(self) -> None:
        if not isinstance(self.out_dir, str) or not self.out_dir:
            raise ConfigError(f"out_dir must be a folder or URL, such as 'runs/demo'; got {self.out_dir!r}")
        checks.flag("dry_run", self.dry_run)
        checks.flag("save_all", self.save_all)
        checks.flag("export_tensorboard", self.export_tensorboard)
        if self.tensorboard_dir is not None and not (
            isinstance(self.tensorboard_dir, str)
            and self.tensorboard_dir
            and "://" not in self.tensorboard_dir
        ):
            raise ConfigError(f"tensorboard_dir must be a local folder, got {self.tensorboard_dir!r}")
        if self.tensorboard_dir is not None and not self.export_tensorboard:
            _log.warning("tdcore: tensorboard_dir has no effect without export_tensorboard=True")
        if self.export_tensorboard and self.tensorboard_dir is None and "://" in self.out_dir:
            raise ConfigError(
                "export_tensorboard needs tensorboard_dir, a local folder, because out_dir is a URL"
            )
        if self.reduction_config is not None and not isinstance(self.reduction_config, ReductionConfig):
            raise ConfigError(
                f"reduction_config must be a ReductionConfig, got {type(self.reduction_config).__name__}"
            )
        if self.profiler_config is not None and not isinstance(self.profiler_config, ProfilerConfig):
            raise ConfigError(
                f"profiler_config must be a ProfilerConfig, got {type(self.profiler_config).__name__}; "
                "write tdcore.ProfilerConfig(start_step=..., num_steps=...)"
            )
        when = SaveConfig.parse(self.save_config).completed(SaveConfig())
        object.__setattr__(self, "save_config", when)
        object.__setattr__(self, "include_workers", parse_workers(self.include_workers))
        object.__setattr__(self, "include_regex", checks.patterns("include_regex", self.include_regex))
        object.__setattr__(
            self, "include_collections", checks.names("include_collections", self.include_collections)
        )
        object.__setattr__(self, "collections", tuple(self.collections))
        object.__setattr__(self, "rules", checks.names("rules", self.rules))

    @property
    def tensorboard_folder(self) -> str | None:
        """The folder of the export of this run; None without export_tensorboard."""
        if not self.export_tensorboard:
            return None
        if self.tensorboard_dir is None:
            return os.path.join(self.out_dir, "tensorboard")
        name = os.path.basename(self.out_dir.partition("?")[0].rstrip("/"))
        return os.path.join(self.tensorboard_dir, name or "run")

    def to_json_dict(self) -> dict[str, Any]:
        """Return the settings as JSON values, for run.json."""
        profiler = self.profiler_config
        return {
            "save_config": self.save_config.to_json_dict(),
            "reduction_config": self.reduction_config.to_json_dict() if self.reduction_config else None,
            "include_regex": list(self.include_regex),
            "include_collections": list(self.include_collections),
            "save_all": self.save_all,
            "include_workers": checks.plain(self.include_workers),
            "collections": [collection.to_json_dict() for collection in self.collections],
            "rules": list(self.rules),
            **({"profiler_config": profiler.to_json_dict()} if profiler is not None else {}),
        }
