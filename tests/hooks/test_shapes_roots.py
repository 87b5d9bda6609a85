"""Several models under one hook: a generator, a discriminator and a third network that train alternately."""

from __future__ import annotations

import gc
import json
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import tdcore as td
from tdcore.hooks.pytorch import Hook

from .conftest import Captured, MakeHook, ReadRun
from .models import Net, train

ROOTS = "several root modules"
EVERYTHING = ["weights", "biases", "gradients", "outputs", "inputs", "hyperparameters"]
SAVED = [0, 3, 6, 9]


class Generator(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc, self.out = nn.Linear(4, 6), nn.Linear(6, 5)

    def forward(self, z: torch.Tensor) -> Any:
        return self.out(self.fc(z).relu())


class Critic(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc, self.out = nn.Linear(5, 6), nn.Linear(6, 1)

    def forward(self, x: torch.Tensor) -> Any:
        return self.out(self.fc(x).relu())


class Game:
    """A GAN: the critic and a frozen judge take the output of the generator. Two backwards, two optimizers.

    A round has two updates, so it is two training steps:

        step       forwards                          update
        2 * round  generator, critic, critic         critic
        ... + 1    judge, critic                     generator

    seen: the weights and gradients that each step should hold, by name.
    """

    def __init__(self) -> None:
        torch.manual_seed(4)
        self.generator, self.critic, self.judge = Generator(), Critic(), Critic()
        self.judge.requires_grad_(False)
        self.of_generator = torch.optim.Adam(self.generator.parameters(), lr=0.01)
        self.of_critic = torch.optim.SGD(self.critic.parameters(), lr=0.01)
        self.seen: list[dict[str, torch.Tensor]] = []

    def step(self, number: int) -> torch.Tensor:
        torch.manual_seed(number)
        real, z = torch.randn(3, 5), torch.randn(3, 4)
        self.seen.append({})
        self._see_weights(self.generator, "Generator")
        self._see_weights(self.critic, "Critic")
        fake = self.generator(z)
        self.of_critic.zero_grad()
        loss_of_critic = self.critic(fake.detach()).mean() - self.critic(real).mean()
        loss_of_critic.backward()
        self._see_gradients(self.critic, "Critic")
        self.of_critic.step()
        self.seen.append({})
        self._see_weights(self.generator, "Generator")
        self._see_weights(self.critic, "Critic")
        self._see_weights(self.judge, "Critic_1")
        self.of_generator.zero_grad()
        loss = self.judge(fake).mean() - self.critic(fake).mean()
        loss.backward()
        self._see_gradients(self.generator, "Generator")
        self._see_gradients(self.critic, "Critic")  # no update uses these gradients
        self.of_generator.step()
        return torch.stack([loss.detach(), loss_of_critic.detach()])

    def _see_weights(self, model: nn.Module, name: str) -> None:
        for path, parameter in model.named_parameters():
            self.seen[-1][f"{name}_{path}"] = parameter.detach().clone()

    def _see_gradients(self, model: nn.Module, name: str) -> None:
        for path, parameter in model.named_parameters():
            assert parameter.grad is not None
            self.seen[-1][f"gradient/{name}_{path}"] = parameter.grad.clone()


Played = tuple[Captured, Game, list[torch.Tensor]]


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Played:
    """Run five rounds of the game, which are ten steps. Two steps of each optimizer are saved."""
    game = Game()
    hook = Hook(
        tmp_path_factory.mktemp("game") / "run",
        save_config=td.SaveConfig(save_interval=3),
        include_collections=EVERYTHING,
        ring=td.RingConfig(ring_bytes=1 << 22, slots=1024, names_bytes=1 << 20),
        flusher="thread",
    )
    for module in (game.generator, game.critic, game.judge):
        hook.register_module(module)
    losses = [game.step(number) for number in range(5)]
    assert not hook._faults
    hook.close()
    return Captured(Path(hook.out_dir)), game, losses


def test_each_update_of_a_round_ends_a_step_whichever_root_it_is_of(played: Played) -> None:
    run, game, _ = played
    assert len(game.seen) == 2 * 5
    assert sorted({row["step"] for row in run.rows}) == SAVED
    assert {row["mode"] for row in run.rows} == {"TRAIN"}
    assert {row["step"]: row["mode_step"] for row in run.rows} == {step: step for step in SAVED}


@pytest.mark.supports(ROOTS, "values")
def test_weights_and_gradients_of_all_roots_are_those_of_their_own_turn(played: Played) -> None:
    run, game, _ = played
    for step in SAVED:
        for name, expected in game.seen[step].items():
            assert np.array_equal(run.value(name, step), expected.numpy()), (name, step)
        weights = {
            row["name"] for row in run.rows if row["step"] == step and row["kind"] in ("weight", "bias")
        }
        assert weights == {name for name in game.seen[step] if not name.startswith("gradient/")}


@pytest.mark.supports(ROOTS, "values")
def test_gradients_of_a_root_whose_optimizer_did_not_step_are_absent_or_those_that_were_left(
    played: Played,
) -> None:
    run, game, _ = played
    for step in SAVED:
        rows = [row for row in run.rows if row["step"] == step and row["kind"] == "gradient"]
        having = {row["name"] for row in rows if row["status"] == "ok"}
        assert having == {name for name in game.seen[step] if name.startswith("gradient/")}
        absent = {(row["name"].partition("_")[0], row["reason"]) for row in rows if row["status"] == "absent"}
        of_critic = step % 2 == 0
        assert absent == ({("gradient/Generator", "not_stepped")} if of_critic else set())


def test_names_of_outputs_are_distinct_and_count_the_calls(played: Played) -> None:
    run, _, _ = played

    def calls(step: int) -> dict[str, list[int]]:
        return {
            name: [row["call"] for row in run.of(name) if row["step"] == step]
            for name in run.names(step)
            if name.endswith("fc_output_0")
        }

    assert calls(6) == {"fc_output_0": [0], "Critic.fc_output_0": [0, 1]}
    assert calls(3) == {"Critic.fc_output_0": [0], "Critic_1.fc_output_0": [0]}
    assert {"Generator_output_0", "Critic_output_0"} <= set(run.names(6))
    assert {"Critic_output_0", "Critic_1_output_0"} <= set(run.names(3))


def test_each_optimizer_has_a_number_of_its_own(played: Played) -> None:
    run, _, _ = played
    assert run.steps("optimizer/group_0/lr") == [3, 9]
    assert run.steps("optimizer_1/group_0/lr") == [0, 6]
    assert run.value("optimizer/group_0/lr", 3) == run.value("optimizer_1/group_0/lr", 0) == 0.01
    assert "optimizer/group_0/betas" in run.names()
    assert "optimizer_1/group_0/momentum" in run.names()


def test_the_notes_tell_of_all_roots(played: Played) -> None:
    run, _, _ = played
    document = json.loads((Path(run.trial.path) / "collections.json").read_text())
    notes = document["attempts"]["0"]
    assert notes["frozen"] == [f"Critic_1_{name}" for name, _ in Critic().named_parameters()]
    assert notes["never_called"] == {}


@pytest.mark.supports(ROOTS, "losses")
def test_losses_are_the_same_bits_without_the_hook(played: Played) -> None:
    game = Game()
    plain = [game.step(number) for number in range(5)]
    assert all(map(torch.equal, plain, played[2]))


def test_steps_by_hand_hold_all_turns_of_a_round(make_hook: MakeHook, read_run: ReadRun) -> None:
    hook, game = make_hook(include_collections=["outputs", "gradients"]), Game()
    hook.register_module(game.critic)
    hook.register_module(game.generator)
    for number in range(3):
        hook.step()
        game.step(number)
    run = read_run(hook)
    for step in range(3):
        assert [row["call"] for row in run.of("fc_output_0") if row["step"] == step] == [0, 1, 2]
        for turn, name in enumerate(("gradient/Critic_fc.weight", "gradient/Generator_fc.weight")):
            assert np.array_equal(run.value(name, step), game.seen[2 * step + turn][name].numpy())


def test_with_the_clock_of_the_older_library_a_round_is_one_step(
    make_hook: MakeHook, read_run: ReadRun
) -> None:
    hook, game = make_hook(include_collections=["outputs", "gradients"], clock="forward"), Game()
    hook.register_module(game.generator)
    hook.register_module(game.critic)
    for number in range(3):
        game.step(number)
    assert hook.global_step == 2
    run = read_run(hook)
    for step in range(3):
        assert [row["call"] for row in run.of("fc_output_0") if row["step"] == step] == [0]
        assert [row["call"] for row in run.of("Critic.fc_output_0") if row["step"] == step] == [0, 1, 2]
        for turn, name in enumerate(("gradient/Critic_fc.weight", "gradient/Generator_fc.weight")):
            assert np.array_equal(run.value(name, step), game.seen[2 * step + turn][name].numpy())


def test_one_optimizer_that_steps_twice_in_a_round_ends_two_steps(
    make_hook: MakeHook, read_run: ReadRun
) -> None:
    hook, game = make_hook(include_collections=["outputs", "gradients"]), Game()
    hook.register_module(game.critic)
    for number in range(2):
        game.step(number)
        real = torch.randn(3, 5)
        game.of_critic.zero_grad()
        game.critic(real).mean().backward()
        game.of_critic.step()
    run = read_run(hook)
    # Only the critic is registered: its forward for the generator's update belongs to its own next update.
    calls = [(row["step"], row["call"]) for row in run.of("fc_output_0")]
    assert calls == [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0), (2, 1), (3, 0), (3, 1)]
    assert run.steps("gradient/Critic_fc.weight") == [0, 1, 2, 3]


def test_a_root_without_a_forward_in_a_step_has_no_rows_there(make_hook: MakeHook, read_run: ReadRun) -> None:
    hook, one, two = make_hook(include_collections=["weights", "gradients", "outputs"]), Net(), Critic()
    hook.register_module(one)
    hook.register_module(two)
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in (one, two)]
    for iteration in range(4):
        train(one, optimizers[0])  # steps 0, 1, 2 and 4
        if iteration == 2:
            train(two, optimizers[1], features=5)  # step 3
    run = read_run(hook)
    for name in ("gradient/Critic_fc.weight", "Critic_fc.weight", "Critic.fc_output_0"):
        assert run.steps(name) == [3]
    for name in ("gradient/Net_fc1.weight", "Net_fc1.weight", "fc1_output_0"):
        assert run.steps(name) == [0, 1, 2, 4]


def test_one_optimizer_over_two_roots_has_one_set_of_settings(make_hook: MakeHook, read_run: ReadRun) -> None:
    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder, self.decoder = nn.Linear(4, 4), nn.Linear(4, 3)

    both, hook = Both(), make_hook(save_all=True)
    hook.register_module(both.encoder)
    hook.register_module(both.decoder)
    optimizer = torch.optim.Adam(both.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        both.decoder(both.encoder(torch.randn(2, 4))).square().mean().backward()
        optimizer.step()
    run = read_run(hook)
    assert len(run.of("optimizer/group_0/lr")) == 2
    assert run.steps("gradient/Linear_1_weight") == run.steps("gradient/Linear_weight") == [0, 1]
    assert run.steps("optimizer/exp_avg/Linear_1_weight") == [1]
    assert not any(name.startswith("optimizer_1") for name in run.names())


@pytest.mark.supports("several root modules", "values")
@pytest.mark.supports("GradScaler", "values")
def test_a_scaler_that_is_registered_is_that_of_all_roots_and_told_once(
    make_hook: MakeHook, read_run: ReadRun
) -> None:
    names = ("Linear_weight", "Linear_1_weight")
    encoder, decoder = nn.Linear(4, 4), nn.Linear(4, 3)
    hook = make_hook(include_collections=["gradients", "backward_gradients"])
    hook.register_module(encoder)
    hook.register_module(decoder)
    optimizer = torch.optim.SGD([*encoder.parameters(), *decoder.parameters()], lr=0.1)
    decoder(encoder(torch.randn(2, 4))).square().mean().backward()
    optimizer.step()
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    hook.register_scaler(scaler)
    for factor in (1.0, float("inf")):
        optimizer.zero_grad()
        scaler.scale(decoder(encoder(torch.randn(2, 4))).square().mean() * factor).backward()
        scaler.step(optimizer)
        scaler.update()
    run = read_run(hook)
    for name in names:
        after, before = run.value(f"gradient/{name}", 1), run.value(f"backward_gradient/{name}", 1)
        assert np.array_equal(after, before), name
    assert run.steps("optimizer/grad_scale") == run.steps("optimizer/found_inf") == [1, 2]
    assert [run.value("optimizer/found_inf", step) for step in (1, 2)] == [0.0, 1.0]


def test_a_name_that_a_module_of_the_first_root_has_is_not_taken(
    make_hook: MakeHook, read_run: ReadRun
) -> None:
    class Whole(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.Critic = Generator()

        def forward(self, z: torch.Tensor) -> Any:
            return self.Critic(z)

    hook, one, two = make_hook(include_collections=["outputs"]), Whole(), Critic()
    hook.register_module(one)
    hook.register_module(two)
    two(one(torch.randn(2, 4)))
    assert {"Critic.fc_output_0", "Critic_1.fc_output_0"} <= set(read_run(hook).names())


def test_a_teacher_under_no_grad_first_gets_its_gradients_in_the_same_step(
    make_hook: MakeHook, read_run: ReadRun
) -> None:
    hook, one, two = make_hook(include_collections=["weights", "gradients"]), Net(), Critic()
    hook.register_module(one)
    hook.register_module(two)
    optimizer = torch.optim.SGD([*one.parameters(), *two.parameters()], lr=0.0)
    for _ in range(2):
        optimizer.zero_grad()
        output = one(torch.randn(2, 4))
        with torch.no_grad():
            two(torch.randn(2, 5))
        (output.sum() + two(torch.randn(2, 5)).sum()).backward()
        optimizer.step()
    run = read_run(hook)
    gradient = two.fc.weight.grad
    assert gradient is not None
    assert np.array_equal(run.value("gradient/Critic_fc.weight", 2), gradient.numpy())
    assert run.steps("gradient/Critic_fc.weight") == run.steps("gradient/Net_fc1.weight") == [0, 2]
    found = {(row["step"], row["mode"], row["mode_step"]) for row in run.of("Critic_fc.weight")}
    assert found == {(0, "TRAIN", 0), (1, "PREDICT", 0), (2, "TRAIN", 1), (3, "PREDICT", 1)}


def test_a_teacher_that_follows_by_hand_has_the_weights_that_its_forward_saw(
    make_hook: MakeHook, read_run: ReadRun
) -> None:
    hook, student, teacher = make_hook(include_collections=["weights"]), Net(), Critic().requires_grad_(False)
    hook.register_module(student)
    hook.register_module(teacher)
    optimizer, seen = torch.optim.SGD(student.parameters(), lr=0.1), []
    for _ in range(2):
        train(student, optimizer)
        teacher(torch.randn(2, 5))
        seen.append(teacher.fc.weight.clone())
        teacher.fc.weight.mul_(0.5)
    run = read_run(hook)
    assert run.steps("Critic_fc.weight") == [
        1,
        2,
    ]  # a teacher that runs after the update begins the next step
    for step, weight in enumerate(seen, 1):
        assert np.array_equal(run.value("Critic_fc.weight", step), weight.numpy())


@pytest.mark.supports(ROOTS, "breaks")
def test_models_and_hook_end_without_the_garbage_collector(make_hook: MakeHook) -> None:
    gc.collect()
    gc.disable()
    try:
        game = Game()
        hook = make_hook(save_all=True)
        hook.register_module(game.generator)
        hook.register_module(game.critic)
        game.step(0)
        hook.close()
        held: list[weakref.ref[nn.Module]] = [weakref.ref(game.generator), weakref.ref(game.critic)]
        del game
        assert [one() for one in held] == [None, None]
    finally:
        gc.enable()


@pytest.mark.supports(ROOTS, "cost")
def test_a_closed_hook_leaves_nothing_on_any_root(make_hook: MakeHook) -> None:
    hook, game = make_hook(save_all=True), Game()
    for module in (game.generator, game.critic):
        hook.register_module(module)
        hook.register_module(module)
    game.step(0)
    assert [len(module._forward_pre_hooks) for module in (game.generator, game.critic)] == [1, 1]
    hook.close()
    for module in (game.generator, game.critic):
        assert not module._forward_pre_hooks
        assert all(parameter._backward_hooks is None for parameter in module.parameters())
