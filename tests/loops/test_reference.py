"""Generator, interpreter and reference recorder without a hook: steps and rows as computed by hand."""

from __future__ import annotations

import pytest
import torch

from tests.loops.generator import CLOSURES, EXCLUSIONS, Loop, from_text, random_loop, without_ambiguity
from tests.loops.interpreter import execute
from tests.loops.reference import Expected, Key

Rows = dict[Key, Expected]


def _steps(loop: Loop) -> list[str]:
    return [f"{mode} {mode_step}" for mode, mode_step, _ in execute(loop).reference.steps]


def _rows(loop: Loop) -> Rows:
    return execute(loop).reference.rows


def _calls(rows: Rows, name: str) -> list[tuple[str, int, int]]:
    return [(key.mode, key.mode_step, key.call) for key in rows if key.name == name]


def test_accumulation_with_evaluations_after_and_between_has_one_step_per_update() -> None:
    loop = Loop(accumulate=2, windows=2, evaluate="inside", loss="none")
    assert _steps(loop) == ["TRAIN 0", "EVAL 0", "TRAIN 1", "EVAL 1"]
    rows = _rows(loop)
    assert _calls(rows, "fc1_output_0") == [
        ("TRAIN", 0, 0),
        ("EVAL", 0, 0),
        ("TRAIN", 0, 1),
        ("TRAIN", 1, 0),
        ("EVAL", 1, 0),
        ("TRAIN", 1, 1),
    ]
    assert _calls(rows, "gradient/Mlp_fc1.weight") == [("TRAIN", 0, 0), ("TRAIN", 1, 0)]
    assert _calls(rows, "Mlp_fc1.weight") == [
        ("TRAIN", 0, 0),
        ("EVAL", 0, 0),
        ("TRAIN", 1, 0),
        ("EVAL", 1, 0),
    ]


def test_the_two_turns_of_a_gan_are_two_steps() -> None:
    loop = without_ambiguity(
        Loop(roots=("mlp", "conv"), register=(1, 0), scheme="gan", windows=2, loss="none")
    )
    assert _steps(loop) == ["TRAIN 0", "TRAIN 1", "TRAIN 2", "TRAIN 3"]
    rows = _rows(loop)
    at = [(step, call) for _, step, call in _calls(rows, "Conv_output_0")]
    assert at == [(0, 0), (0, 1), (1, 0), (2, 0), (2, 1), (3, 0)]
    generator = {
        step: rows[key].value for key in rows if key.name == "gradient/Mlp_fc1.weight" for step in [key.step]
    }
    assert [step for step, value in sorted(generator.items()) if value is not None] == [1, 3]
    assert [step for _, step, _ in _calls(rows, "Mlp_fc1.weight")] == [
        0,
        1,
        2,
        3,
    ]  # at its own step in 1 and 3
    assert "no backward" in rows[Key("TRAIN", 0, 0, "gradient/Mlp_fc1.weight", 0)].reasons


def test_evaluations_of_a_closure_are_calls_of_one_step() -> None:
    loop = Loop(updater="lbfgs_4", windows=2, loss="none")
    assert _steps(loop) == ["TRAIN 0", "TRAIN 1"]
    rows = _rows(loop)
    evaluations = _calls(rows, "gradient/Mlp_fc2.bias")
    assert len(evaluations) == len(_calls(rows, "Mlp_output_0")) > 4
    assert [call for _, step, call in evaluations if step == 0] == list(range(len(evaluations) // 2))


def test_hand_written_updates_have_one_step_per_sign_of_an_update() -> None:
    loop = without_ambiguity(Loop(updater="hand_data_add", accumulate=3, windows=3, zero="never"))
    assert loop.warmup
    assert _steps(loop) == ["TRAIN 0", "TRAIN 1", "TRAIN 2"]
    assert _calls(_rows(loop), "Mlp_output_0")[-1] == ("TRAIN", 2, 2)


def test_without_any_sign_of_an_update_every_backward_ends_a_step() -> None:
    loop = without_ambiguity(Loop(updater="none", accumulate=2, windows=2, zero="never"))
    assert _steps(loop) == ["TRAIN 0", "TRAIN 1", "TRAIN 2"]  # the first window has one body


def test_a_rollout_and_a_forced_mode_are_numbered_by_the_rule() -> None:
    loop = Loop(evaluate="after", how="train_no_grad", evaluate_calls=2, windows=2)
    assert _steps(loop) == ["TRAIN 0", "PREDICT 0", "PREDICT 1", "TRAIN 1", "PREDICT 2", "PREDICT 3"]
    forced = Loop(evaluate="after", set_mode="global", windows=2)
    assert _steps(forced) == ["GLOBAL 0", "GLOBAL 1", "GLOBAL 2"]  # an evaluation begins the next step


def test_a_model_that_trains_in_eval_mode_counts_as_training_from_its_first_update_on() -> None:
    assert _steps(Loop(train_in_eval=True)) == ["EVAL 0", "TRAIN 0", "TRAIN 1", "TRAIN 2"]


@pytest.mark.parametrize("updater", ["sam", "sam_closure"])
def test_both_passes_of_sam_are_one_step_with_the_weights_of_the_first(updater: str) -> None:
    loop = Loop(updater=updater, windows=2, loss="none")
    assert _steps(loop) == ["TRAIN 0", "TRAIN 1"]
    rows = _rows(loop)
    assert [step for _, step, _ in _calls(rows, "Mlp_output_0")] == [0, 0, 1, 1]
    torch.manual_seed(loop.seed)
    first = execute(Loop(windows=0)).weights["0.fc1.weight"]
    kept = rows[Key("TRAIN", 0, 0, "Mlp_fc1.weight", 0)].value
    assert kept is not None
    assert torch.equal(kept, first)


def test_a_step_that_a_scaler_skips_is_a_step_without_gradients() -> None:
    loop = Loop(scaler="inf", windows=3, loss="none")
    assert _steps(loop) == ["TRAIN 0", "TRAIN 1", "TRAIN 2"]
    rows = _rows(loop)
    gradients = {key.step: rows[key] for key in rows if key.name == "gradient/Mlp_fc1.bias"}
    assert gradients[0].value is not None
    assert gradients[1].value is None
    assert "skipped by the gradient scaler" in gradients[1].reasons


def test_generated_loops_run_alike_twice_and_their_texts_restore_them() -> None:
    for number in range(40):
        loop = random_loop(1, number)
        assert from_text(loop.text()) == loop == random_loop(1, number)
        assert not any(one.applies(loop) for one in EXCLUSIONS)
        once, again = execute(loop), execute(loop)
        assert all(map(torch.equal, once.losses, again.losses))
        assert once.reference.rows.keys() == again.reference.rows.keys()


def test_generated_loops_have_as_many_training_steps_as_updates() -> None:
    compared = 0
    for number in range(150):
        loop = random_loop(2, number)
        turns = {"turns": len(loop.roots), "gan": 2}.get(loop.scheme, 1)
        plain = loop.steps == "update" and loop.set_mode == "none" and not loop.train_in_eval
        several = loop.updater in CLOSURES and loop.owner == "each"  # one step per optimizer
        within = loop.updater == "in_backward" and loop.scheme == "gan"  # the critic has two updates per turn
        if not plain or several or within or loop.updater == "none" or len(loop.register) < len(loop.roots):
            continue
        steps = execute(loop).reference.steps
        assert sum(mode == "TRAIN" for mode, _, _ in steps) == loop.windows * turns, loop.text()
        assert [step for _, _, step in steps] == list(range(len(steps)))
        compared += 1
    assert compared > 30


def test_the_table_of_exclusions_lists_every_number() -> None:
    from tests.loops import generator

    text = str(generator.__doc__)
    assert all(f"\n    {one.number} " in text for one in EXCLUSIONS)
