"""Table of causes: the sign of each cause, the causes that it explains, the advice, and its check.

Of two equally strong causes, the earlier one is reported first. The order is: data, loss, initialisation,
graph, update, model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from tdcore.rules.diagnosis import signs_data, signs_graph, signs_loss, signs_model, signs_steps
from tdcore.rules.diagnosis.evidence import Evidence
from tdcore.rules.diagnosis.facts import Facts

__all__ = ["CAUSES", "Cause"]

Sign = Callable[[Facts], Iterator[Evidence]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """One cause.

    Attributes:
        name: Name in plain words.
        sign: Yields the evidence for the cause.
        explains: Names of causes that are by-products if this cause is found too.
        excludes: Names of causes whose advice contradicts the advice of this one. Only the stronger of two is
            reported.
        change: Advice for a change.
        check: How to check that the change helped.
    """

    name: str
    sign: Sign
    change: str
    check: str
    explains: tuple[str, ...] = ()
    excludes: tuple[str, ...] = ()


_NUMERIC = ("exploding gradients", "logarithm or root of zero")
_NOT_LEARNING = ("targets unrelated to the inputs", "learning rate too low")
_SIZES = (
    "exploding gradients",
    "vanishing gradients",
    "saturated activations",
    "dead units",
    "learning rate too high",
    "gradients are never cleared",
)

_TABLE = (
    Cause(
        name="inputs hold NaN",
        sign=signs_data.inputs_hold_nan,
        explains=(
            *_NUMERIC,
            *_SIZES,
            *_NOT_LEARNING,
            "corrupted batches",
            "training has stopped in the middle",
        ),
        change="Find the samples with NaN or infinity and drop or impute them: "
        "`assert torch.isfinite(inputs).all()` in the data loader names the batch.",
        check="The inputs of the model have nan_count 0 at every saved step.",
    ),
    Cause(
        name="inputs are constant",
        sign=signs_data.inputs_are_constant,
        explains=(
            *_NOT_LEARNING,
            "dead units",
            "vanishing gradients",
            "capacity too small",
            "padding",
            "overfitting",
        ),
        change="Look at one batch of inputs: search for a wrong column, a mask, or a transform that returns "
        "zeros.",
        check="The inputs have a standard deviation above zero, and the first layer has gradients.",
    ),
    Cause(
        name="one class only",
        sign=signs_data.one_class,
        explains=("class imbalance", "overfitting", "training has stopped in the middle", *_NOT_LEARNING),
        change="Shuffle the data set before it is split, and check how labels are read.",
        check="Batches contain labels of all classes.",
    ),
    Cause(
        name="shapes of the loss are broadcast",
        sign=signs_loss.broadcast,
        explains=(*_NOT_LEARNING, "capacity too small"),
        change="Give outputs and targets the same shape: `loss(outputs.squeeze(1), targets)` or "
        "`targets.unsqueeze(1)`.",
        check="Inputs 0 and 1 of the loss have the same shape.",
    ),
    Cause(
        name="softmax before the loss",
        sign=signs_loss.softmax_before_loss,
        explains=(*_NOT_LEARNING, "vanishing gradients", "learning rate too low"),
        change="Remove the softmax: CrossEntropyLoss takes logits and applies log_softmax itself.",
        check="The inputs of the loss also have negative values, and the loss falls below 1.",
    ),
    Cause(
        name="sigmoid before the loss",
        sign=signs_loss.sigmoid_before_loss,
        explains=(*_NOT_LEARNING, "vanishing gradients", "learning rate too low"),
        change="Remove the sigmoid, or use BCELoss with it: BCEWithLogitsLoss takes logits.",
        check="The inputs of the loss also have negative values.",
    ),
    Cause(
        name="logits before a likelihood loss",
        sign=signs_loss.logits_before_nll,
        explains=("the loss is maximised", "exploding gradients", "learning rate too high", *_NOT_LEARNING),
        change="Apply `log_softmax(outputs, dim=1)` before NLLLoss, or use CrossEntropyLoss with the logits.",
        check="Input 0 of the loss is at most 0.",
    ),
    Cause(
        name="the loss is maximised",
        sign=signs_loss.loss_is_maximised,
        explains=(*_SIZES, *_NUMERIC, "overfitting", *_NOT_LEARNING),
        change="Change the sign of the loss; with a reward or a likelihood, minimise its negative.",
        check="The loss falls towards its lower bound and not below it.",
    ),
    Cause(
        name="the loss is scaled down",
        sign=signs_loss.loss_is_scaled_down,
        explains=("learning rate too low", "clipping too tight", "vanishing gradients", *_NOT_LEARNING),
        change="Remove the factor, or divide by the number of samples only once.",
        check="The first loss is about the loss of random outputs: log(classes) for a cross-entropy.",
    ),
    Cause(
        name="weights start alike",
        sign=signs_model.weights_start_alike,
        explains=(
            *_SIZES,
            *_NOT_LEARNING,
            "capacity too small",
            "weights start too small",
            "weights start too large",
            "gradients are cleared before the step",
        ),
        change="Initialise with random numbers: `nn.init.kaiming_normal_(layer.weight)`.",
        check="The standard deviation of each weight is above zero at the first step.",
    ),
    Cause(
        name="weights start too large",
        sign=signs_model.weights_start_too_large,
        explains=(
            "saturated activations",
            "exploding gradients",
            "dead units",
            "learning rate too high",
            "logarithm or root of zero",
            "vanishing gradients",
            "learning rate too low",
            *_NOT_LEARNING,
        ),
        excludes=("weights start too small",),
        change="Use the framework's initialisation: a deviation of about 1/sqrt(inputs), or sqrt(2/inputs) "
        "before a ReLU.",
        check="Outputs of all layers have a similar deviation, around 1, at the first step.",
    ),
    Cause(
        name="weights start too small",
        sign=signs_model.weights_start_too_small,
        explains=(
            "vanishing gradients",
            "learning rate too high",
            "dead units",
            "gradients are never cleared",
            *_NOT_LEARNING,
        ),
        excludes=("weights start too large",),
        change="Use the framework's initialisation: a deviation of about 1/sqrt(inputs), or sqrt(2/inputs) "
        "before a ReLU.",
        check="Outputs of all layers have a similar deviation, around 1, at the first step.",
    ),
    Cause(
        name="exploding gradients",
        sign=signs_model.exploding_gradients,
        explains=("logarithm or root of zero", "learning rate too high", "weights start too large"),
        change="Clip: `torch.nn.utils.clip_grad_norm_(parameters, 1.0)`; initialise recurrent weights, if "
        "there are any, with orthogonal matrices.",
        check="The norm of the gradients stays within a factor of 100 of its median.",
    ),
    Cause(
        name="inputs not normalised",
        sign=signs_data.inputs_not_normalised,
        explains=(
            "logarithm or root of zero",
            "exploding gradients",
            "learning rate too high",
            "dead units",
            "saturated activations",
            "weights start too small",
            *_NOT_LEARNING,
        ),
        change="Subtract the mean and divide by the standard deviation of the training data.",
        check="The inputs have a mean of about 0 and a standard deviation of about 1.",
    ),
    Cause(
        name="a layer is never called",
        sign=signs_graph.never_called,
        explains=("the graph is cut", "parameters without an optimizer", "frozen parameters"),
        change="Call the module in forward(), or remove it.",
        check="`trial.notes()['never_called']` is empty.",
    ),
    Cause(
        name="the graph is cut",
        sign=signs_graph.graph_is_cut,
        explains=("capacity too small", *_NOT_LEARNING, "training has stopped in the middle"),
        change="Look for detach(), .data, numpy() or torch.no_grad() between the last layer without "
        "gradients and the next one with gradients.",
        check="All trained parameters have gradient rows.",
    ),
    Cause(
        name="parameters without an optimizer",
        sign=signs_graph.not_owned,
        explains=("frozen parameters", "the graph is cut", "gradients are never cleared", *_NOT_LEARNING),
        change="Give the optimizer `model.parameters()`, after all layers have been made.",
        check="`trial.notes()` does not contain `not_owned`.",
    ),
    Cause(
        name="frozen parameters",
        sign=signs_graph.frozen,
        change="If this is not intended, call `parameter.requires_grad_(True)` before the optimizer is made.",
        check="`trial.notes()['frozen']` lists only parameters that are frozen on purpose.",
    ),
    Cause(
        name="gradients are cleared before the step",
        sign=signs_graph.cleared_before_step,
        explains=(*_NOT_LEARNING, "vanishing gradients", "training has stopped in the middle"),
        change="Call zero_grad() before backward(), or after optimizer.step(), never between the two.",
        check="Gradients are above zero when the optimizer steps.",
    ),
    Cause(
        name="gradients are never cleared",
        sign=signs_graph.never_cleared,
        explains=("exploding gradients", "learning rate too high"),
        change="Call `optimizer.zero_grad()` once for each optimizer.step().",
        check="Gradients stop growing with the number of steps.",
    ),
    Cause(
        name="a layer stays in eval mode",
        sign=signs_graph.stays_in_eval,
        explains=("overfitting", *_NOT_LEARNING),
        change="Call `model.train()` before each training epoch. If a layer must stay in eval mode, freeze "
        "its parameters too.",
        check="`trial.notes()` does not contain `eval_in_training`.",
    ),
    Cause(
        name="weights change in evaluation",
        sign=signs_graph.updates_in_evaluation,
        explains=("exploding gradients",),
        change="Take backward() and optimizer.step() out of the evaluation, and run the evaluation under "
        "torch.no_grad().",
        check="No gradients are recorded in EVAL mode, and weights are the same before and after an "
        "evaluation.",
    ),
    Cause(
        name="updates are lost in half precision",
        sign=signs_steps.lost_in_half_precision,
        explains=("learning rate too low", *_NOT_LEARNING),
        change="Keep the weights in float32 and use torch.autocast for the forward pass.",
        check="Weights change at every step.",
    ),
    Cause(
        name="training has stopped in the middle",
        sign=signs_steps.training_stopped,
        explains=("learning rate too low", *_NOT_LEARNING),
        change="Check the schedule of the learning rate: its number of steps, and how often scheduler.step() "
        "is called.",
        check="The learning rate is above zero until the last step.",
    ),
    Cause(
        name="weight decay too high",
        sign=signs_steps.decay_too_high,
        explains=("vanishing gradients", "learning rate too high", "dead units", *_NOT_LEARNING),
        change="Lower weight_decay; AdamW is usually run with 0.01 to 0.1.",
        check="The size of the weights stays about the same, or grows slowly.",
    ),
    Cause(
        name="clipping too tight",
        sign=signs_steps.clipping_too_tight,
        explains=("learning rate too low", "gradients are never cleared", *_NOT_LEARNING),
        change="Raise the limit to about the median of the norm without clipping (often 1 to 10).",
        check="Fewer than half of the steps are clipped.",
    ),
    Cause(
        name="logarithm or root of zero",
        sign=signs_loss.log_of_zero,
        explains=("exploding gradients", "learning rate too high", *_NOT_LEARNING),
        change="Use the framework's stable form (cross_entropy, log_softmax, logsumexp), or add a small "
        "number inside the logarithm or root.",
        check="The loss and all gradients are finite.",
    ),
    Cause(
        name="corrupted batches",
        sign=signs_data.corrupted_batches,
        explains=(
            "exploding gradients",
            "learning rate too high",
            "overfitting",
            "logarithm or root of zero",
        ),
        change="Look at the batches of the steps in the evidence; drop or repair these batches.",
        check="The scale of the inputs is the same at all steps.",
    ),
    Cause(
        name="learning rate too high",
        sign=signs_steps.rate_too_high,
        explains=(
            "exploding gradients",
            "saturated activations",
            "dead units",
            "vanishing gradients",
            "logarithm or root of zero",
            "overfitting",
            *_NOT_LEARNING,
        ),
        excludes=("learning rate too low", "clipping too tight"),
        change="Divide the learning rate by 10, or more, until updates are about 1/1000 of the weights.",
        check="Updates are around 0.001 of the weights, and the loss falls from the first steps on.",
    ),
    Cause(
        name="learning rate too low",
        sign=signs_steps.rate_too_low,
        explains=("targets unrelated to the inputs",),
        excludes=("learning rate too high",),
        change="Multiply the learning rate by 10, repeatedly, until updates are about 1/1000 of the weights.",
        check="Updates are around 0.001 of the weights, and the loss falls.",
    ),
    Cause(
        name="dropout too high",
        sign=signs_model.dropout_too_high,
        explains=(*_NOT_LEARNING, "dead units", "overfitting"),
        change="Lower p of the dropout; 0.1 to 0.5 is usual.",
        check="The training loss falls.",
    ),
    Cause(
        name="dead units",
        sign=signs_model.dead_units,
        explains=("vanishing gradients", "capacity too small", *_NOT_LEARNING),
        change="Lower the learning rate, start biases at zero, or use LeakyReLU or GELU.",
        check="Fewer than half of the outputs of each activation are zero.",
    ),
    Cause(
        name="capacity too small",
        sign=signs_model.capacity,
        explains=("dead units", *_NOT_LEARNING),
        change="Widen the layer in the evidence. Look for a mask or a pruning that is still active.",
        check="The training loss falls further than before.",
    ),
    Cause(
        name="saturated activations",
        sign=signs_model.saturated_activations,
        explains=("vanishing gradients", *_NOT_LEARNING),
        change="Start with smaller weights, normalise the inputs, or add a normalisation before the "
        "activation.",
        check="Fewer than half of the outputs are near the ends of the activation's range.",
    ),
    Cause(
        name="vanishing gradients",
        sign=signs_model.vanishing_gradients,
        explains=_NOT_LEARNING,
        change="Use ReLU or GELU with residual connections or a normalisation between the layers.",
        check="The gradients of the first layer are at least 1/100 of the gradients of the last layer.",
    ),
    Cause(
        name="class imbalance",
        sign=signs_data.imbalance,
        explains=("overfitting",),
        change="Weight the classes in the loss, or sample rare classes more often.",
        check="The recall of the rare class rises.",
    ),
    Cause(
        name="padding",
        sign=signs_data.padding,
        change="Group sequences of similar length, or pack them.",
        check="Fewer than half of the tokens are padding.",
    ),
    Cause(
        name="overfitting",
        sign=signs_loss.overfitting,
        change="Stop at the step with the lowest validation loss; use more data, augmentation or dropout.",
        check="The validation loss follows the training loss.",
    ),
    Cause(
        name="targets unrelated to the inputs",
        sign=signs_loss.targets_unrelated,
        change="Check that labels belong to their inputs: shuffle both with the same permutation, and look "
        "at ten pairs. Then try to overfit one batch.",
        check="The loss of a single repeated batch falls to zero, and the loss of all data falls too.",
    ),
)

CAUSES: Mapping[str, Cause] = {cause.name: cause for cause in _TABLE}
