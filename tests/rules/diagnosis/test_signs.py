"""Signs of causes, each on histories that show it and on histories that do not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from tdcore.rules.diagnosis.diagnosis import rank
from tdcore.rules.diagnosis.facts import Facts
from tdcore.rules.diagnosis.histories import History

STEPS = 60


def history(name: str, kind: str, *, mode: str = "TRAIN", **given: Any) -> History:
    """A tensor of standard normal values with shape (32, 16), unless parameters differ."""
    shape: Sequence[int] = given.pop("shape", (32, 16))
    steps = given.pop("steps", np.arange(STEPS))
    usual = {
        "rms": 1.0,
        "mean": 0.0,
        "std": 1.0,
        "least": -3.0,
        "most": 3.0,
        "largest": 3.0,
        "zeros": 0.0,
        "bad": 0.0,
        "count": float(np.prod(shape)),
    }
    arrays = {
        column: np.broadcast_to(np.asarray(given.pop(column, value), dtype=np.float64), steps.shape)
        for column, value in usual.items()
    }
    arrays["square_sum"] = arrays["rms"] ** 2 * arrays["count"]
    return History(
        name=name,
        kind=kind,
        mode=mode,
        worker="worker_0",
        origin=given.pop("origin", ""),
        dtype=given.pop("dtype", "F32"),
        shape=tuple(shape),
        order=given.pop("order", 0),
        steps=steps,
        global_steps=given.pop("global_steps", steps),
        **arrays,
    )


def healthy() -> dict[str, History]:
    """Three layers under Adam with usual sizes, and a falling loss."""
    found = [
        history("Net_input_0", "input"),
        history("optimizer/group_0/lr", "hyperparameter", mean=1e-3, shape=()),
        history("optimizer/group_0/betas", "hyperparameter", mean=0.9, shape=(2,)),
        history(
            "CrossEntropyLoss_output_0",
            "loss",
            mean=np.linspace(1.6, 0.2, STEPS),
            shape=(),
            count=1,
        ),
        history("CrossEntropyLoss_input_0", "input", shape=(32, 5), order=9),
    ]
    for at in range(3):
        found.append(history(f"Net_layer{at}.weight", "weight", rms=0.14, shape=(16, 16), order=at))
        noise = np.random.default_rng(at).uniform(0.5, 1.5, STEPS)
        found.append(history(f"gradient/Net_layer{at}.weight", "gradient", rms=0.01 * noise, order=20 - at))
        found.append(history(f"layer{at}_output_0", "output", origin="ReLU", zeros=0.5, order=at))
    return {one.name: one for one in found}


def causes(
    *changed: History,
    without: Sequence[str] = (),
    absent: Mapping[str, Mapping[str, int]] | None = None,
    notes: Mapping[str, Any] | None = None,
    findings: Mapping[str, tuple[Any, ...]] | None = None,
) -> list[str]:
    """Return the names of the causes found after these changes to a healthy training."""
    found = {(one.mode, one.name): one for one in healthy().values() if one.name not in without}
    found |= {(one.mode, one.name): one for one in changed}
    facts = Facts(
        histories=found,
        absent={("TRAIN", name): reasons for name, reasons in (absent or {}).items()},
        notes=notes or {},
        findings=findings or {},
    )
    return [one.cause for one in rank(facts)]


def finding(tensor: str) -> Any:
    """A finding of a rule, with the fields that signs read."""
    return SimpleNamespace(tensor=tensor, why="a reason", mode="EVAL", mode_step=2, numbers={})


def test_a_healthy_training_has_no_cause() -> None:
    assert causes() == []


def test_nan_in_the_inputs_is_named_and_what_follows_from_it_is_not() -> None:
    bad = np.where(np.arange(STEPS) >= 20, 3.0, 0.0)
    inputs = history("Net_input_0", "input", bad=bad)
    gradient = history("gradient/Net_layer0.weight", "gradient", bad=bad)
    assert causes(inputs, gradient) == ["inputs hold NaN"]


def test_an_attention_mask_of_infinities_is_no_nan() -> None:
    mask = history("Net_input_1", "input", bad=40.0, largest=0.0, least=0.0, most=0.0, std=0.0)
    assert causes(mask) == []


def test_inputs_of_one_value_are_constant() -> None:
    flat: dict[str, Any] = {"least": 0.0, "most": 0.0, "std": 0.0, "rms": 0.0, "largest": 0.0}
    assert causes(history("Net_input_0", "input", **flat)) == ["inputs are constant"]


def test_bytes_of_images_are_not_normalised() -> None:
    assert causes(history("Net_input_0", "input", mean=128, std=60, rms=141, least=0, most=255)) == [
        "inputs not normalised"
    ]


def test_token_numbers_need_no_normalisation() -> None:
    tokens = history("Net_input_0", "input", mean=900, std=500, rms=1000, least=0, most=3000, dtype="I64")
    assert causes(tokens) == []


def test_batches_of_another_scale_are_corrupted() -> None:
    rms = np.where(np.arange(STEPS) % 10 == 5, 30.0, 1.0)
    assert causes(history("Net_input_0", "input", rms=rms)) == ["corrupted batches"]


def test_probabilities_in_a_cross_entropy_are_a_softmax_too_many() -> None:
    outputs = history("CrossEntropyLoss_input_0", "input", shape=(32, 5), least=0.01, most=0.9, mean=0.2)
    assert causes(outputs) == ["softmax before the loss"]


def test_outputs_and_targets_of_different_shapes_are_broadcast() -> None:
    outputs = history("MSELoss_input_0", "input", shape=(32, 1), order=9)
    targets = history("MSELoss_input_1", "input", shape=(32,), order=9)
    loss = history("MSELoss_output_0", "loss", mean=1.0, shape=(), count=1)
    assert causes(outputs, targets, loss)[0] == "shapes of the loss are broadcast"


def test_class_numbers_are_no_broadcast() -> None:
    targets = history("CrossEntropyLoss_input_1", "input", shape=(32,), dtype="I64", least=0, most=4)
    assert causes(targets) == []


def test_labels_of_one_class_are_named() -> None:
    assert causes(history("labels", "custom", shape=(32,), dtype="I64", least=2, most=2, std=0)) == [
        "one class only"
    ]


def test_equal_weights_are_named() -> None:
    alike = [
        history(f"Net_layer{at}.weight", "weight", least=0.1, most=0.1, std=0, rms=0.1, shape=(16, 16))
        for at in range(3)
    ]
    assert causes(*alike) == ["weights start alike"]


def test_weights_of_thirty_times_the_usual_size_are_named() -> None:
    large = [
        history(f"Net_layer{at}.weight", "weight", rms=5.0, largest=15.0, shape=(16, 16)) for at in range(3)
    ]
    assert causes(*large) == ["weights start too large"]


def test_an_embedding_with_a_deviation_of_one_is_usual() -> None:
    table = history("Net_tokens.weight", "weight", shape=(1000, 512))
    output = history("tokens_output_0", "output", origin="Embedding")
    assert causes(table, output) == []


def test_a_learning_rate_as_large_as_the_weights_is_too_high() -> None:
    assert causes(history("optimizer/group_0/lr", "hyperparameter", mean=0.2, shape=())) == [
        "learning rate too high"
    ]


def test_a_learning_rate_that_changes_nothing_is_too_low() -> None:
    assert causes(history("optimizer/group_0/lr", "hyperparameter", mean=1e-7, shape=())) == [
        "learning rate too low"
    ]


def flat(rate: Any, last: float = 1.59) -> list[History]:
    """A cross-entropy that falls from 1.6 to `last` under Adam with this learning rate."""
    return [
        history("optimizer/group_0/lr", "hyperparameter", mean=rate, shape=()),
        history("CrossEntropyLoss_output_0", "loss", mean=np.linspace(1.6, last, STEPS), shape=(), count=1),
    ]


def test_small_updates_with_a_loss_that_hardly_falls_are_a_rate_too_low() -> None:
    assert causes(*flat(1e-5)) == ["learning rate too low"]


def test_small_updates_with_a_loss_that_falls_are_no_fault() -> None:
    assert "learning rate too low" not in causes(*flat(1e-5, last=0.2))


def test_small_updates_at_the_end_of_a_schedule_are_no_fault() -> None:
    assert "learning rate too low" not in causes(*flat(np.linspace(2e-5, 2e-6, STEPS)))


def test_a_learning_rate_of_zero_in_the_middle_is_named() -> None:
    rate = np.where(np.arange(STEPS) < 30, 1e-3, 0.0)
    assert causes(history("optimizer/group_0/lr", "hyperparameter", mean=rate, shape=())) == [
        "training has stopped in the middle"
    ]


def weights(rms: Any, **given: Any) -> list[History]:
    """Return the weights of the three layers."""
    return [history(f"Net_layer{at}.weight", "weight", rms=rms, shape=(16, 16), **given) for at in range(3)]


def test_weights_that_stay_the_same_while_gradients_arrive_have_stopped() -> None:
    rms = 0.14 + np.minimum(np.arange(STEPS), 30) / 1000
    assert causes(*weights(rms)) == ["training has stopped in the middle"]


def test_a_training_of_three_steps_has_not_stopped_at_its_last_one() -> None:
    assert causes(*weights([0.14, 0.141, 0.142], steps=np.arange(3))) == []


def test_gradients_that_add_up_are_never_cleared() -> None:
    grown = [
        history(f"gradient/Net_layer{at}.weight", "gradient", rms=0.01 * np.arange(1, STEPS + 1))
        for at in range(3)
    ]
    assert causes(*grown) == ["gradients are never cleared"]


def test_gradients_of_zero_at_each_step_are_cleared_before_it() -> None:
    zero: dict[str, Any] = {"largest": 0.0, "rms": 0.0, "least": 0.0, "most": 0.0, "zeros": 1.0}
    none = [history(f"gradient/Net_layer{at}.weight", "gradient", **zero) for at in range(3)]
    assert causes(*none)[0] == "gradients are cleared before the step"


def test_gradients_that_never_come_in_front_of_others_are_a_cut_graph() -> None:
    name = "gradient/Net_layer0.weight"
    assert causes(without=[name], absent={name: {"no_backward": STEPS}}) == ["the graph is cut"]


def test_a_frozen_layer_is_no_cut_graph() -> None:
    name = "gradient/Net_layer1.weight"
    found = causes(
        without=[name], absent={name: {"no_backward": STEPS}}, notes={"frozen": ["Net_layer1.weight"]}
    )
    assert found == ["frozen parameters"]


def test_a_module_that_is_never_called_is_named() -> None:
    name = "gradient/Net_spare.weight"
    found = causes(absent={name: {"no_backward": STEPS}}, notes={"never_called": {"spare": "no forward"}})
    assert found == ["a layer is never called"]


def test_parameters_that_no_optimizer_holds_are_named() -> None:
    assert causes(notes={"not_owned": ["Net_layer1.weight"]}) == ["parameters without an optimizer"]


def test_a_layer_that_stays_in_eval_mode_is_named_unless_it_is_frozen() -> None:
    noted: dict[str, Any] = {"eval_in_training": {"layer1": "always"}}
    assert causes(notes=noted) == ["a layer stays in eval mode"]
    assert "a layer stays in eval mode" not in causes(notes={**noted, "frozen": ["Net_layer1.weight"]})


def test_optimizer_steps_after_forwards_in_eval_mode_are_named() -> None:
    assert causes(notes={"eval_in_training": {"Net": "at some steps"}}) == ["weights change in evaluation"]


def test_gradients_in_evaluation_are_named() -> None:
    assert causes(history("gradient/Net_layer1.weight", "gradient", mode="EVAL", steps=np.arange(3))) == [
        "weights change in evaluation"
    ]


def test_weights_that_change_within_an_evaluation_are_named_unless_others_were_loaded_once() -> None:
    def evaluated(*means: float) -> History:
        steps = np.arange(len(means))
        return history(
            "Net_layer1.weight", "weight", mode="EVAL", steps=steps, mean=means, rms=np.asarray(means) + 1
        )

    assert causes(evaluated(0.1, 0.2, 0.3)) == ["weights change in evaluation"]
    assert not causes(evaluated(0.1, 0.1, 0.1, 0.3, 0.3, 0.3))


def test_a_loss_that_is_infinite_while_all_it_is_made_of_is_finite_has_a_logarithm_of_zero() -> None:
    loss = history(
        "CrossEntropyLoss_output_0",
        "loss",
        mean=np.linspace(1.6, 0.2, STEPS),
        bad=np.where(np.arange(STEPS) > 10, 1.0, 0.0),
        shape=(),
        count=1,
    )
    assert causes(loss) == ["logarithm or root of zero"]


def test_a_loss_that_falls_below_zero_without_an_end_has_the_wrong_sign() -> None:
    loss = history(
        "CrossEntropyLoss_output_0", "loss", mean=-np.geomspace(1.6, 900, STEPS), shape=(), count=1
    )
    assert causes(loss) == ["the loss is maximised"]


def test_dead_activations_are_named() -> None:
    dead = history("layer1_output_0", "output", origin="ReLU", zeros=1.0, order=1)
    assert causes(dead) == ["dead units"]


def test_names_of_modules_are_read_from_names_of_tensors() -> None:
    names = ["My_Net_layers.0.weight", "My_Net_1_fc.weight"]
    found = {("TRAIN", f"gradient/{name}"): history(f"gradient/{name}", "gradient") for name in names}
    found |= {
        ("TRAIN", f"{one}_output_0"): history(f"{one}_output_0", "output") for one in ("My_Net", "My_Net_1")
    }
    facts = Facts(histories=found, absent={})
    assert facts.root == "My_Net"
    assert facts.module_of("gradient/My_Net_layers.0.weight") == "layers.0"
    assert facts.module_of("My_Net_1_fc.weight") == "My_Net_1.fc"
    assert facts.module_of("My_Net_weight") == ""


def test_a_run_of_anything_else_has_no_cause_and_raises_nothing() -> None:
    for histories in (
        {},
        {("TRAIN", "x"): history("x", "custom", steps=np.arange(1))},
        {("EVAL", "MSELoss_output_0"): history("MSELoss_output_0", "loss", mode="EVAL", shape=(), count=1)},
        {("GLOBAL", "train-rmse"): history("train-rmse", "metric", mode="GLOBAL", shape=(), count=1)},
    ):
        assert rank(Facts(histories=histories, absent={}, notes={"eval_in_training": ["x"]})) == ()


def test_healthy_trainings_of_other_kinds_have_no_cause() -> None:
    loss = "CrossEntropyLoss_output_0"
    state = history("Net_input_1", "input", least=0.0, most=0.0, std=0.0, rms=0.0, largest=0.0)
    assert causes(state) == []  # the first state of a recurrent network
    simsiam = history("SimSiam_output_0", "loss", mean=np.linspace(-0.1, -0.9, STEPS), shape=(), count=1)
    assert causes(simsiam, without=[loss]) == []
    place = history("Net_pos_embedding.weight", "weight", shape=(1, 65, 512))
    assert causes(place) == []
    teacher = {"frozen": [f"Net_teacher{at}.weight" for at in range(3)]}
    frozen = [history(f"Net_teacher{at}.weight", "weight", shape=(16, 16), rms=0.14) for at in range(3)]
    assert causes(*frozen, notes=teacher) == []
    overflow = history(
        "gradient/Net_layer0.weight", "gradient", bad=np.where(np.arange(STEPS) == 0, 9.0, 0.0)
    )
    assert causes(overflow) == []  # the first step of a gradient scaler
    warm_up = history("optimizer/group_0/lr", "hyperparameter", mean=np.linspace(0, 1e-3, STEPS), shape=())
    assert causes(warm_up) == []


def test_heavy_tails_of_the_inputs_are_no_corrupted_batches() -> None:
    rms = np.random.default_rng(0).lognormal(1.0, 1.2, STEPS)
    assert rms.max() > 5 * np.median(rms)
    assert causes(history("Net_input_0", "input", rms=rms)) == []


def test_adadelta_with_its_usual_rate_of_one_has_no_rate_that_is_too_high() -> None:
    rate = history("optimizer/group_0/lr", "hyperparameter", mean=1.0, shape=())
    rho = history("optimizer/group_0/rho", "hyperparameter", mean=0.9, shape=())
    assert causes(rate, rho, without=["optimizer/group_0/betas"]) == []


def test_gradients_set_to_none_before_the_step_are_cleared_too() -> None:
    names = [f"gradient/Net_layer{at}.weight" for at in range(3)]
    found = causes(without=names, absent={name: {"cleared": STEPS} for name in names})
    assert found == ["gradients are cleared before the step"]


def test_a_block_that_is_never_called_is_one_cause_whatever_is_in_it() -> None:
    name = "gradient/Net_spare.0.weight"
    found = causes(absent={name: {"no_backward": STEPS}}, notes={"never_called": {"spare": "no forward"}})
    assert found == ["a layer is never called"]


def test_inputs_that_the_model_normalises_first_need_no_normalisation() -> None:
    inputs = history("Net_input_0", "input", mean=24, std=14, rms=28, least=0, most=50)
    norm = history("norm_output_0", "output", origin="BatchNorm1d", order=-1)
    embedding = history("table_output_0", "output", origin="Embedding", order=-2)
    assert causes(inputs, norm, embedding) == []
    deeper = history("norm_output_0", "output", origin="BatchNorm1d", order=2)
    assert causes(inputs, deeper) == ["inputs not normalised"]


def test_a_likelihood_that_passes_zero_is_not_maximised() -> None:
    name, first = "GaussianLoss_output_0", "CrossEntropyLoss_output_0"
    loss = history(name, "loss", mean=np.linspace(-0.01, -2.6, STEPS), shape=(), count=1)
    assert causes(loss, without=[first]) == []
    endless = history(name, "loss", mean=-np.geomspace(0.01, 900, STEPS), shape=(), count=1)
    assert causes(endless, without=[first]) == ["the loss is maximised"]


def test_a_validation_is_judged_by_the_mean_of_its_batches() -> None:
    name, steps = "CrossEntropyLoss_output_0", np.arange(6)
    loss = history(name, "loss", mean=np.geomspace(1.6, 0.1, STEPS), shape=(), count=1)

    def validated(means: Sequence[float]) -> History:
        after = np.repeat([19.5, 39.5, 59.5], 2)  # two batches after each 20 steps
        given: dict[str, Any] = {"steps": steps, "global_steps": after, "shape": (), "count": 1}
        return history(name, "loss", mode="EVAL", mean=means, **given)

    assert causes(loss, validated([0.9, 0.5, 0.8, 0.3, 0.7, 0.2])) == []  # one batch is harder
    assert causes(loss, validated([0.9, 0.5, 0.8, 0.3, 1.2, 0.8])) == ["overfitting"]


def test_a_gap_to_a_validation_loss_that_stands_still_is_no_overfitting() -> None:
    name, found = "CrossEntropyLoss_output_0", {"Overfit": (finding("CrossEntropyLoss_output_0"),)}
    given: dict[str, Any] = {"steps": np.arange(3), "global_steps": np.array([19.5, 39.5, 59.5]), "count": 1}
    still = history(name, "loss", mode="EVAL", mean=[0.70, 0.73, 0.72], shape=(), **given)
    training = history(name, "loss", mean=np.linspace(1.6, 0.5, STEPS), shape=(), count=1)
    assert causes(training, still, findings=found) == []
    by_heart = history(name, "loss", mean=np.geomspace(1.6, 1e-3, STEPS), shape=(), count=1)
    assert causes(by_heart, still, findings=found) == ["overfitting"]
    rises = history(name, "loss", mode="EVAL", mean=[0.70, 0.79, 0.80], shape=(), **given)
    assert causes(rises, findings=found) == ["overfitting"]
