"""The rules, one file each; RULES is the table of all of them, by code."""

from __future__ import annotations

from collections.abc import Mapping

from tdcore.rules.base import Rule
from tdcore.rules.library.absent_gradient import AbsentGradient
from tdcore.rules.library.all_zero import AllZero
from tdcore.rules.library.batch_size import BatchSize
from tdcore.rules.library.check_input_images import CheckInputImages
from tdcore.rules.library.checkpoint_stall import CheckpointStall
from tdcore.rules.library.class_imbalance import ClassImbalance
from tdcore.rules.library.confusion import Confusion
from tdcore.rules.library.cpu_bottleneck import CPUBottleneck
from tdcore.rules.library.dataloader import Dataloader
from tdcore.rules.library.dead_channels import DeadChannels
from tdcore.rules.library.dead_relu import DeadRelu
from tdcore.rules.library.exploding_tensor import ExplodingTensor
from tdcore.rules.library.feature_importance_overweight import FeatureImportanceOverweight
from tdcore.rules.library.first_non_finite import FirstNonFinite
from tdcore.rules.library.gpu_memory_increase import GPUMemoryIncrease
from tdcore.rules.library.input_bound import InputBound
from tdcore.rules.library.io_bottleneck import IOBottleneck
from tdcore.rules.library.learning_rate import LearningRate
from tdcore.rules.library.load_balancing import LoadBalancing
from tdcore.rules.library.loop_overhead import LoopOverhead
from tdcore.rules.library.loss_not_decreasing import LossNotDecreasing
from tdcore.rules.library.loss_spike import LossSpike
from tdcore.rules.library.low_gpu_utilization import LowGPUUtilization
from tdcore.rules.library.max_initialization_time import MaxInitializationTime
from tdcore.rules.library.memory_growth import MemoryGrowth
from tdcore.rules.library.mismatched_loss import MismatchedLoss
from tdcore.rules.library.nlp_sequence_ratio import NLPSequenceRatio
from tdcore.rules.library.outlier_rank import OutlierRank
from tdcore.rules.library.overall_framework_metrics import OverallFrameworkMetrics
from tdcore.rules.library.overall_system_usage import OverallSystemUsage
from tdcore.rules.library.overfit import Overfit
from tdcore.rules.library.overtraining import Overtraining
from tdcore.rules.library.poor_weight_initialization import PoorWeightInitialization
from tdcore.rules.library.precision_risk import PrecisionRisk
from tdcore.rules.library.profiler_report import ProfilerReport
from tdcore.rules.library.recompile_storm import RecompileStorm
from tdcore.rules.library.saturated_activation import SaturatedActivation
from tdcore.rules.library.similar_across_runs import SimilarAcrossRuns
from tdcore.rules.library.stalled_training_rule import StalledTrainingRule
from tdcore.rules.library.step_outlier import StepOutlier
from tdcore.rules.library.straggler import Straggler
from tdcore.rules.library.tensor_variance import TensorVariance
from tdcore.rules.library.thermal_throttle import ThermalThrottle
from tdcore.rules.library.tree_depth import TreeDepth
from tdcore.rules.library.unchanged_tensor import UnchangedTensor
from tdcore.rules.library.underfit import Underfit
from tdcore.rules.library.unequal_ranks import UnequalRanks
from tdcore.rules.library.vanishing_gradient import VanishingGradient
from tdcore.rules.library.weight_update_ratio import WeightUpdateRatio
from tdcore.rules.library.wrong_mode import WrongMode

__all__ = [
    "RULES",
    "AbsentGradient",
    "AllZero",
    "BatchSize",
    "CPUBottleneck",
    "CheckInputImages",
    "CheckpointStall",
    "ClassImbalance",
    "Confusion",
    "Dataloader",
    "DeadChannels",
    "DeadRelu",
    "ExplodingTensor",
    "FeatureImportanceOverweight",
    "FirstNonFinite",
    "GPUMemoryIncrease",
    "IOBottleneck",
    "InputBound",
    "LearningRate",
    "LoadBalancing",
    "LoopOverhead",
    "LossNotDecreasing",
    "LossSpike",
    "LowGPUUtilization",
    "MaxInitializationTime",
    "MemoryGrowth",
    "MismatchedLoss",
    "NLPSequenceRatio",
    "OutlierRank",
    "OverallFrameworkMetrics",
    "OverallSystemUsage",
    "Overfit",
    "Overtraining",
    "PoorWeightInitialization",
    "PrecisionRisk",
    "ProfilerReport",
    "RecompileStorm",
    "SaturatedActivation",
    "SimilarAcrossRuns",
    "StalledTrainingRule",
    "StepOutlier",
    "Straggler",
    "TensorVariance",
    "ThermalThrottle",
    "TreeDepth",
    "UnchangedTensor",
    "Underfit",
    "UnequalRanks",
    "VanishingGradient",
    "WeightUpdateRatio",
    "WrongMode",
]

RULES: Mapping[str, type[Rule]] = {
    "TDC101": VanishingGradient,
    "TDC102": ExplodingTensor,
    "TDC103": LossNotDecreasing,
    "TDC104": DeadRelu,
    "TDC105": Overfit,
    "TDC106": Underfit,
    "TDC107": Overtraining,
    "TDC108": StalledTrainingRule,
    "TDC109": LossSpike,
    "TDC110": ClassImbalance,
    "TDC111": Confusion,
    "TDC112": CheckInputImages,
    "TDC113": NLPSequenceRatio,
    "TDC114": SimilarAcrossRuns,
    "TDC115": TreeDepth,
    "TDC116": FeatureImportanceOverweight,
    "TDC117": PoorWeightInitialization,
    "TDC118": WeightUpdateRatio,
    "TDC119": AllZero,
    "TDC120": TensorVariance,
    "TDC121": UnchangedTensor,
    "TDC122": SaturatedActivation,
    "TDC123": FirstNonFinite,
    "TDC124": PrecisionRisk,
    "TDC125": OutlierRank,
    "TDC126": LearningRate,
    "TDC127": DeadChannels,
    "TDC128": AbsentGradient,
    "TDC129": WrongMode,
    "TDC130": MismatchedLoss,
    "TDC131": UnequalRanks,
    "TDC201": BatchSize,
    "TDC202": CPUBottleneck,
    "TDC203": IOBottleneck,
    "TDC204": GPUMemoryIncrease,
    "TDC205": LoadBalancing,
    "TDC206": LowGPUUtilization,
    "TDC207": MaxInitializationTime,
    "TDC208": StepOutlier,
    "TDC209": Dataloader,
    "TDC210": OverallSystemUsage,
    "TDC211": OverallFrameworkMetrics,
    "TDC212": ProfilerReport,
    "TDC213": MemoryGrowth,
    "TDC214": ThermalThrottle,
    "TDC215": Straggler,
    "TDC216": InputBound,
    "TDC217": RecompileStorm,
    "TDC218": CheckpointStall,
    "TDC219": LoopOverhead,
}
