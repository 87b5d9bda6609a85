"""Collections for a diagnosis: statistics only, except for labels and predictions.

Constants; any thread.
"""

from __future__ import annotations

from tdcore.config.collection_config import CollectionConfig
from tdcore.config.save_config import SaveConfig, SaveConfigMode
from tdcore.modes import ModeKeys
from tdcore.rules.requirements import STATISTICS, VALUES

__all__ = ["DEFAULT_CAPTURES", "DIAGNOSIS_CAPTURES"]

# Tensors that a diagnosis needs in addition to those of the rules.
DIAGNOSIS_CAPTURES = (
    CollectionConfig(
        name="loss_inputs",
        include_regex=(r"(?i)(loss|criterion|mse|mae|bce|nll|entropy|objective)[^/.]*_input_[01]$",),
        save_config=SaveConfig(save_interval=10),
        reduction_config=STATISTICS,
    ),
    CollectionConfig(
        name="model_inputs",  # the model has the name of its class
        include_regex=(r"^(?!.*[Ll]oss)[A-Z]\w*_input_[\w.]+$",),
        save_config=SaveConfig(save_interval=5),
        reduction_config=STATISTICS,
    ),
    CollectionConfig(
        name="module_outputs",
        include_regex=(r"_output_0$",),
        save_config=SaveConfig(save_interval=20),
        reduction_config=STATISTICS,
    ),
)

_EARLY = range(40)  # steps at which most faults appear; all of these steps are saved
_OFTEN = SaveConfig(save_interval=10, save_steps=_EARLY)
_OF_LOSSES = SaveConfig(
    save_interval=5, save_steps=_EARLY, mode_save_configs={ModeKeys.EVAL: SaveConfigMode(save_interval=1)}
)

# Collections of Hook(rules="default"): enough for a diagnosis, and cheap enough for every training.
DEFAULT_CAPTURES = (
    CollectionConfig(name="losses", save_config=_OF_LOSSES, reduction_config=STATISTICS),
    CollectionConfig(name="weights", save_config=_OFTEN, reduction_config=STATISTICS),
    CollectionConfig(name="gradients", save_config=_OFTEN, reduction_config=STATISTICS),
    CollectionConfig(name="hyperparameters", save_config=_OFTEN, reduction_config=STATISTICS),
    CollectionConfig(
        name="classes",
        include_regex=(r"^(labels|predictions)$",),
        save_config=SaveConfig(save_interval=10),
        reduction_config=VALUES,
    ),
    *DIAGNOSIS_CAPTURES,
)
