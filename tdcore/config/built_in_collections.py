"""The built-in collections of every hook: their names, and the tensors that belong to them.

Constants, any thread.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TypeAlias

from tdcore.format.layout import TensorKind

__all__ = ["BOOSTING", "BUILT_IN", "OLDER_REGEX", "ON_REQUEST", "CollectionKeys", "Kinds"]

Kinds: TypeAlias = frozenset[TensorKind]


class CollectionKeys:
    """Names of the built-in collections, and of collections for other frameworks."""

    ALL = "all"
    DEFAULT = "default"
    WEIGHTS = "weights"
    BIASES = "biases"
    GRADIENTS = "gradients"
    LOSSES = "losses"
    INPUTS = "inputs"
    OUTPUTS = "outputs"
    OUTPUT_GRADIENTS = "output_gradients"
    SCALARS = "scalars"
    CUSTOM = "custom"
    OPTIMIZER_VARIABLES = "optimizer_variables"
    HYPERPARAMETERS = "hyperparameters"
    BACKWARD_GRADIENTS = "backward_gradients"
    MICROBATCH_GRADIENTS = "microbatch_gradients"
    WEIGHT_UPDATES = "weight_updates"
    UPDATE_RATIOS = "update_ratios"
    METRICS = "metrics"
    PREDICTIONS = "predictions"
    LABELS = "labels"
    FEATURE_IMPORTANCE = "feature_importance"
    AVERAGE_SHAP = "average_shap"
    FULL_SHAP = "full_shap"
    TREES = "trees"


# Patterns that smdebug uses for these collections, which select parameters by name:
# hook.get_collection("weights").include_regex = OLDER_REGEX["weights"]
OLDER_REGEX = MappingProxyType({"weights": "^(?!gradient).*weight", "biases": "^(?!gradient).*bias"})

PARAMETERS: Kinds = frozenset({TensorKind.WEIGHT, TensorKind.BIAS})
_RESULTS = frozenset({TensorKind.OUTPUT, TensorKind.LOSS, TensorKind.CUSTOM})
_NO_KINDS: Kinds = frozenset()
_EXTRA = frozenset({TensorKind.CUSTOM})
_OF_MODULES = frozenset({TensorKind.INPUT, TensorKind.OUTPUT})
# Not in "all"; a user's pattern selects this kind only if the pattern contains "output_gradient".
ON_REQUEST = TensorKind.OUTPUT_GRADIENT
# name -> patterns, kinds that always belong, kinds that the patterns may select (None: all). Without this
# restriction, ".*" in "weights" would select all tensors.
BUILT_IN: dict[str, tuple[tuple[str, ...], Kinds, Kinds | None]] = {
    CollectionKeys.ALL: ((".*",), _NO_KINDS, frozenset(TensorKind) - {ON_REQUEST}),
    CollectionKeys.DEFAULT: ((), _NO_KINDS, None),
    CollectionKeys.WEIGHTS: ((".*",), _NO_KINDS, frozenset({TensorKind.WEIGHT})),
    CollectionKeys.BIASES: ((".*",), _NO_KINDS, frozenset({TensorKind.BIAS})),
    CollectionKeys.GRADIENTS: (("^gradient",), _NO_KINDS, frozenset({TensorKind.GRADIENT})),
    CollectionKeys.LOSSES: (("[Ll]oss_(?!input).*output",), frozenset({TensorKind.LOSS}), _RESULTS),
    CollectionKeys.INPUTS: (("_input_",), _NO_KINDS, frozenset({TensorKind.INPUT})),
    CollectionKeys.OUTPUTS: (("_output_",), _NO_KINDS, frozenset({TensorKind.OUTPUT})),
    CollectionKeys.OUTPUT_GRADIENTS: (("^output_gradient/",), _NO_KINDS, frozenset({ON_REQUEST})),
    CollectionKeys.SCALARS: ((), frozenset({TensorKind.SCALAR}), None),
    CollectionKeys.CUSTOM: ((), _NO_KINDS, None),
    CollectionKeys.OPTIMIZER_VARIABLES: ((), frozenset({TensorKind.OPTIMIZER_STATE}), None),
    CollectionKeys.HYPERPARAMETERS: ((), frozenset({TensorKind.HYPERPARAMETER}), None),
    CollectionKeys.BACKWARD_GRADIENTS: (("^backward_gradient/",), _NO_KINDS, _EXTRA),
    CollectionKeys.MICROBATCH_GRADIENTS: (("^microbatch_gradient/",), _NO_KINDS, _EXTRA),
    CollectionKeys.WEIGHT_UPDATES: (("^weight_update/",), _NO_KINDS, _EXTRA),
    CollectionKeys.UPDATE_RATIOS: (("^update_ratio/",), _NO_KINDS, _EXTRA),
}
# Further collections of the hooks for gradient boosting, in the same form. The tensors of one fold of a cross
# validation have the prefix "fold_<number>/".
_METRICS = frozenset({TensorKind.LOSS, TensorKind.METRIC})
BOOSTING: dict[str, tuple[tuple[str, ...], Kinds, Kinds | None]] = {
    CollectionKeys.METRICS: ((), _METRICS, None),
    **{
        name: ((f"^{prefix}", f"^fold_[0-9]+/{prefix}"), _NO_KINDS, _EXTRA)
        for name, prefix in (
            (CollectionKeys.PREDICTIONS, "predictions$"),
            (CollectionKeys.LABELS, "labels$"),
            (CollectionKeys.FEATURE_IMPORTANCE, "feature_importance/"),
            (CollectionKeys.AVERAGE_SHAP, "average_shap/"),
            (CollectionKeys.FULL_SHAP, "full_shap/"),
            (CollectionKeys.TREES, "trees/"),
        )
    },
}
