"""Small training programs of common kinds: the hook changes no loss, and steps follow the rule of steps."""

from __future__ import annotations

import importlib
from collections import Counter
from datetime import timedelta
from pathlib import Path
from typing import NamedTuple

import pytest
import torch

import tdcore as td
from tdcore.hooks.pytorch import Hook

_STEPS = 4


class Program(NamedTuple):
    """One program, run for four steps.

    steps: steps of each mode. outputs: rows of an output per training step.
    """

    name: str
    steps: dict[str, int]
    output: str
    outputs: dict[int, int]
    gradient: str
    gradient_steps: tuple[int, ...]


def _each(count: int, steps: int = _STEPS) -> dict[int, int]:
    return dict.fromkeys(range(steps), count)


_ALL = tuple(range(_STEPS))
PROGRAMS = (
    Program("lbfgs", {"TRAIN": 4, "PREDICT": 4}, "Sequence_output_0", _each(3), "Sequence_linear.bias", _ALL),
    Program("hand_sgd", {"TRAIN": 4, "EVAL": 1}, "encoder_output_0", _each(1), "Language_decoder.bias", _ALL),
    Program(
        "gan",
        {"TRAIN": 8, "PREDICT": 2},
        "Critic_output_0",
        {step: 2 - step % 2 for step in range(8)},
        "Generator_main.0.weight",
        (1, 3, 5, 7),
    ),
    Program("siamese", {"TRAIN": 4, "EVAL": 8}, "Siamese_output_0", _each(2), "Siamese_embed.bias", _ALL),
    Program(
        "policy_gradient", {"TRAIN": 4, "PREDICT": 20}, "Policy_output_0", _each(1), "Policy_head.bias", _ALL
    ),
    Program("dqn", {"TRAIN": 4}, "QNet_output_0", _each(1), "QNet_layer2.bias", _ALL),
    Program("encoder_decoder", {"TRAIN": 4}, "Decoder_output_0", _each(2), "Encoder_gru.weight_ih_l0", _ALL),
    Program("momentum_copy", {"TRAIN": 4}, "predict_output_0", _each(2), "Learner_predict.bias", _ALL),
    Program(
        "compute_loss", {"TRAIN": 4, "EVAL": 4}, "encode_output_0", _each(1), "Autoencoder_mean.bias", _ALL
    ),
    Program("own_optimizer", {"TRAIN": 4}, "Net_output_0", _each(1), "Net_out.bias", _ALL),
    Program("sam", {"TRAIN": 4}, "Net_output_0", _each(2), "Net_layers.2.bias", _ALL),
)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
def test_a_program_has_one_training_step_per_update_and_trains_as_without_a_hook(
    program: Program, tmp_path: Path
) -> None:
    torch.set_num_threads(1)
    script = importlib.import_module(f"tests.scripts.loop_{program.name}")
    plain = script.train(_STEPS)
    hook = Hook(
        tmp_path / "run",
        save_config=td.SaveConfig(save_interval=1),
        include_collections=["weights", "biases", "gradients", "outputs", "losses"],
        ring=td.RingConfig(ring_bytes=1 << 22, slots=1 << 12, names_bytes=1 << 20),
        flusher="thread",
        close_timeout=timedelta(seconds=20),
    )
    hooked = script.train(_STEPS, hook)
    hook.close()
    assert plain == hooked
    assert not hook._faults
    rows = td.create_trial(str(tmp_path / "run")).rows().to_pylist()
    steps = {(row["mode"], row["mode_step"]) for row in rows}
    found = Counter(mode for mode, _ in steps)
    assert {mode: found[mode] for mode in program.steps} == program.steps
    train = [row for row in rows if row["mode"] == "TRAIN"]
    assert Counter(row["mode_step"] for row in train if row["name"] == program.output) == program.outputs
    gradients = [
        row for row in train if row["name"] == f"gradient/{program.gradient}" and row["status"] == "ok"
    ]
    assert tuple(sorted({row["mode_step"] for row in gradients})) == program.gradient_steps
