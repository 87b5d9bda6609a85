"""A training is bit-identical with and without the hook: losses, weights, predictions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

pytest.importorskip("keras", reason="stage keras of .ci/run has Keras")

import keras

import tdcore as td
from tests.keras.cases import BACKEND, BATCH, CASES, OwnStep, built, data_of, shows, train

# PyTorch takes two minutes to compile a step, which test_life.py shows to be left alone.
_NOT_HERE = {"tf.random", *(["steps_per_execution", "with XLA"] if BACKEND == "torch" else [])}
_HAVE_A_ROW = ("steps_per_execution", "mixed precision", "own train_step")


def _cases() -> Iterator[Any]:
    for case in sorted(CASES.keys() - _NOT_HERE):
        row = case if case in _HAVE_A_ROW else "fit(), evaluate(), predict()"
        yield pytest.param(case, marks=shows(row, "same training"))


@pytest.mark.parametrize("case", _cases())
def test_losses_weights_and_predictions_are_bit_identical(case: str, make_hook: Callable[..., Any]) -> None:
    whole = case in ("automatic", "mixed precision", "steps_per_execution", "subclassed")
    plain = train(built(case), whole=whole)
    hook = make_hook(save_config=td.SaveConfig(save_interval=3))
    assert train(built(case), hook, whole=whole) == plain
    assert not hook._faults
    assert hook.close().progress.rows > 20


@shows("fit(), evaluate(), predict()", "same training")
@pytest.mark.parametrize("interval", [1, 10])
def test_the_interval_does_not_matter_nor_a_smaller_last_batch(
    interval: int, make_hook: Callable[..., Any]
) -> None:
    plain = train(built("functional"), data=data_of(20))
    hook = make_hook(save_config=td.SaveConfig(save_interval=interval))
    assert train(built("functional"), hook, data=data_of(20)) == plain


@pytest.mark.skipif(BACKEND != "tensorflow", reason="operations of TensorFlow")
@pytest.mark.parametrize("interval", [1, 3])
def test_a_step_with_random_numbers_of_one_function_is_recorded_as_far_as_possible(
    interval: int, make_hook: Callable[..., Any]
) -> None:
    plain = train(built("tf.random"))
    hook = make_hook(save_config=td.SaveConfig(save_interval=interval))
    assert train(built("tf.random"), hook) == plain
    hook.close()
    names = td.create_trial(hook.out_dir).tensor_names()
    assert {"dense/kernel", "loss", "accuracy", "optimizer/group_0/lr"} <= set(names)
    assert not [name for name in names if name.startswith("gradient/")]
    assert any("RandomStandardNormal" in each for each in hook._notes["not_captured"])


@pytest.mark.skipif(BACKEND != "tensorflow", reason="TensorFlow simplifies its graphs")
def test_gradients_that_a_step_multiplies_by_a_constant_keep_their_bits(
    make_hook: Callable[..., Any],
) -> None:
    # A second output between two multiplications makes TensorFlow compute them one by one.
    def trained(*callbacks: Any) -> Any:
        keras.utils.set_random_seed(3)
        model = OwnStep(factor=0.1)
        model.compile(keras.optimizers.SGD(0.3), "sparse_categorical_crossentropy", jit_compile=False)
        return train(model, *callbacks, epochs=20, whole=False)

    plain = trained()
    hook = make_hook(save_config=td.SaveConfig(save_interval=3))
    assert trained(hook) == plain
    assert not hook._faults
    names = td.create_trial(hook.out_dir).tensor_names(regex="^gradient/")
    assert names


def _data_sets() -> dict[str, Callable[[], dict[str, Any]]]:
    """Arguments of fit() by kind of data."""
    x, y = data_of(20)
    steps = {"steps_per_epoch": 3}
    return {
        "arrays with weights": lambda: {"x": x, "y": y, "sample_weight": abs(x[:, 0]), "batch_size": BATCH},
        "a generator": lambda: {"x": ((x[at : at + 8], y[at : at + 8]) for at in (0, 8, 16) * 4), **steps},
        "a data set": lambda: {"x": _batches(x, y)},
        "an infinite data set": lambda: {"x": _batches(x, y).repeat().shuffle(3, seed=1), **steps},
        "with a validation": lambda: {"x": x, "y": y, "batch_size": BATCH, "validation_data": _batches(x, y)},
    }


def _batches(x: Any, y: Any) -> Any:
    import tensorflow as tf

    return tf.data.Dataset.from_tensor_slices((x, y)).batch(BATCH)


@pytest.mark.skipif(BACKEND != "tensorflow", reason="data sets of TensorFlow")
@pytest.mark.parametrize("kind", sorted(_data_sets()))
def test_each_kind_of_data_gives_the_same_training(kind: str, make_hook: Callable[..., Any]) -> None:
    def trained(*callbacks: Any) -> Any:
        model = built("functional")
        history = model.fit(**_data_sets()[kind](), epochs=4, verbose=0, callbacks=list(callbacks)).history
        return history, [weight.tolist() for weight in model.get_weights()]

    plain = trained()
    hook = make_hook(save_config=td.SaveConfig(save_interval=2))
    assert trained(hook) == plain
    assert not hook._faults
    hook.close()
    assert len(td.create_trial(hook.out_dir).tensor("loss").steps(mode=td.modes.TRAIN)) == 6
