"""Cases: for each rule a trace with a finding, and a trace without one. Used by docs and tests."""

from __future__ import annotations

from collections.abc import Mapping

from tdcore.rules.cases import (
    all_zero,
    check_input_images,
    class_imbalance,
    confusion,
    dead_channels,
    dead_relu,
    exploding_tensor,
    feature_importance_overweight,
    first_non_finite,
    learning_rate,
    loss_not_decreasing,
    loss_spike,
    nlp_sequence_ratio,
    outlier_rank,
    overfit,
    overtraining,
    poor_weight_initialization,
    precision_risk,
    saturated_activation,
    similar_across_runs,
    stalled_training_rule,
    tensor_variance,
    tree_depth,
    unchanged_tensor,
    underfit,
    vanishing_gradient,
    weight_update_ratio,
)
from tdcore.rules.cases.case import Case

__all__ = ["CASES", "Case"]

CASES: Mapping[str, tuple[Case, Case]] = {
    "TDC101": (vanishing_gradient.FIRES, vanishing_gradient.QUIET),
    "TDC102": (exploding_tensor.FIRES, exploding_tensor.QUIET),
    "TDC103": (loss_not_decreasing.FIRES, loss_not_decreasing.QUIET),
    "TDC104": (dead_relu.FIRES, dead_relu.QUIET),
    "TDC105": (overfit.FIRES, overfit.QUIET),
    "TDC106": (underfit.FIRES, underfit.QUIET),
    "TDC107": (overtraining.FIRES, overtraining.QUIET),
    "TDC108": (stalled_training_rule.FIRES, stalled_training_rule.QUIET),
    "TDC109": (loss_spike.FIRES, loss_spike.QUIET),
    "TDC110": (class_imbalance.FIRES, class_imbalance.QUIET),
    "TDC111": (confusion.FIRES, confusion.QUIET),
    "TDC112": (check_input_images.FIRES, check_input_images.QUIET),
    "TDC113": (nlp_sequence_ratio.FIRES, nlp_sequence_ratio.QUIET),
    "TDC114": (similar_across_runs.FIRES, similar_across_runs.QUIET),
    "TDC115": (tree_depth.FIRES, tree_depth.QUIET),
    "TDC116": (feature_importance_overweight.FIRES, feature_importance_overweight.QUIET),
    "TDC117": (poor_weight_initialization.FIRES, poor_weight_initialization.QUIET),
    "TDC118": (weight_update_ratio.FIRES, weight_update_ratio.QUIET),
    "TDC119": (all_zero.FIRES, all_zero.QUIET),
    "TDC120": (tensor_variance.FIRES, tensor_variance.QUIET),
    "TDC121": (unchanged_tensor.FIRES, unchanged_tensor.QUIET),
    "TDC122": (saturated_activation.FIRES, saturated_activation.QUIET),
    "TDC123": (first_non_finite.FIRES, first_non_finite.QUIET),
    "TDC124": (precision_risk.FIRES, precision_risk.QUIET),
    "TDC125": (outlier_rank.FIRES, outlier_rank.QUIET),
    "TDC126": (learning_rate.FIRES, learning_rate.QUIET),
    "TDC127": (dead_channels.FIRES, dead_channels.QUIET),
}
