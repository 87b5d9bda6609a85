"""NLPSequenceRatio: the tensors that contain tokens, how tokens are counted, and lists of limits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from tdcore.errors import ConfigError
from tdcore.rules import Engine, NLPSequenceRatio, Status
from tdcore.rules.loading import load_rule
from tdcore.rules.trace import Trace
from tests.rules.epochs import Batches, fit
from tests.rules.judging import judge, same_in_any_cuts
from tests.rules.trainings import judge_run

NAME = "Net_embedding_input_0"


class Bag(nn.Module):
    """A classifier on the mean of the embeddings of a sequence."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(20, 8, padding_idx=0)
        self.head = nn.Linear(8, 2)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return torch.as_tensor(self.head(self.embedding(ids).mean(dim=1)))


class TokenEmbedding(nn.Embedding):
    """An embedding class of the model."""


def sequences(longest: int) -> Batches:
    """Return sequences of 3 to 6 tokens, padded with 0 to `longest`; the class determines the tokens."""
    random = torch.Generator().manual_seed(0)
    found = []
    for _ in range(6):
        labels = torch.randint(0, 2, (16,), generator=random)
        ids = torch.randint(1, 11, (16, longest), generator=random) + 9 * labels[:, None]
        lengths = torch.randint(3, 7, (16, 1), generator=random)
        ids[torch.arange(longest) >= lengths] = 0
        found.append((ids, labels))
    return found


def tokens(*batches: Any, name: str = NAME, origin: str | None = "Embedding", payload: bool = True) -> Trace:
    trace = Trace()
    for step, ids in enumerate(batches):
        trace.add(step, name, "input", np.asarray(ids), origin=origin, payload=payload)
    return trace


@pytest.mark.proves("TDC113", "fires")
def test_sequences_padded_far_beyond_their_length_are_found(tmp_path: Path) -> None:
    place = fit(tmp_path, Bag(), sequences(20), epochs=1, collections=["inputs"])
    found, verdict = judge_run(NLPSequenceRatio(), place)
    assert verdict.status is Status.ISSUE
    assert {finding.tensor for finding in found} == {"embedding_input_0"}
    assert len(found) == 6
    assert float(found[0].numbers["percent"]) > 70


@pytest.mark.proves("TDC113", "quiet")
def test_sequences_padded_to_the_longest_stay_quiet(tmp_path: Path) -> None:
    place = fit(tmp_path, Bag(), sequences(6), epochs=1, collections=["inputs"])
    found, verdict = judge_run(NLPSequenceRatio(), place)
    assert not found
    assert verdict.status is Status.NO_ISSUE
    assert verdict.judged == 6


@pytest.mark.proves("TDC113", "not evaluable")
def test_a_run_without_tokens_is_not_evaluable_and_the_fix_saves_them(losses_run: Path) -> None:
    _, verdict = judge_run(NLPSequenceRatio(), losses_run)
    assert verdict.status is Status.NOT_EVALUABLE
    assert 'CollectionConfig(name="input_sequence"' in verdict.fix
    assert "save_raw_tensor" not in verdict.fix.replace("save_raw_tensor=False", "")


@pytest.mark.proves("TDC113", "boundary")
def test_a_share_of_exactly_the_threshold_does_not_fire_and_above_it_does() -> None:
    assert not judge(NLPSequenceRatio(), tokens([[0, 0, 1, 1]]))[0]
    (finding,) = judge(NLPSequenceRatio(), tokens([[0, 0, 0, 1]]))[0]
    assert finding.numbers["percent"] == 75.0
    assert judge(NLPSequenceRatio(token_thresholds_percent="49.9"), tokens([[0, 0, 1, 1]]))[0]


def test_token_0_needs_statistics_only_and_others_need_values() -> None:
    trace = tokens([[0, 0, 0, 7]], [[7, 7, 7, 0]], payload=False)
    assert [finding.step for finding in judge(NLPSequenceRatio(), trace)[0]] == [0]
    _, verdict = judge(NLPSequenceRatio(token_values="7"), trace)
    assert verdict.status is Status.NOT_EVALUABLE
    assert "token ids saved without their values" in verdict.reason
    assert "save_raw_tensor=True" in verdict.fix


def test_values_are_read_only_where_the_token_may_be() -> None:
    source = tokens([[5, 6]], [[1, 1]]).source()
    source._payloads.pop(0)  # reading it would be recorded
    engine = Engine(source, [NLPSequenceRatio(token_values="1")])
    assert [finding.step for finding in engine.step()] == [1]
    assert not engine.verdicts(finished=True)[0].missing


def test_each_token_has_its_own_limit() -> None:
    rule = NLPSequenceRatio(token_values="0,3", token_thresholds_percent="40,20")
    found = same_in_any_cuts(rule, tokens([[0, 0, 3, 5]], [[0, 5, 5, 3]], [[5, 5, 5, 5]]))
    assert [(finding.step, finding.numbers["token"]) for finding in found] == [(0, 0.0), (0, 3.0), (1, 3.0)]


def test_inputs_are_found_by_module_class_by_the_older_name_or_by_a_pattern() -> None:
    padded = [[0, 0, 0, 1]]
    assert judge(NLPSequenceRatio(), tokens(padded, origin="torch.nn.modules.sparse.Embedding"))[0]
    assert judge(NLPSequenceRatio(), tokens(padded, name="embedding0_input_0", origin=None))[0]
    assert judge(NLPSequenceRatio(), tokens(padded, origin="Linear"))[1].status is Status.NOT_EVALUABLE
    assert judge(NLPSequenceRatio(tensor_regex="^Net_"), tokens(padded, origin="Linear"))[0]


@pytest.mark.parametrize("made", [nn.EmbeddingBag, TokenEmbedding])
def test_bags_and_subclasses_of_embeddings_are_judged(tmp_path: Path, made: type[nn.Module]) -> None:
    model = nn.Sequential(made(20, 8), nn.Flatten(), nn.LazyLinear(2))
    place = fit(tmp_path, model, sequences(20), epochs=1, collections=["inputs"])
    found, _ = judge_run(NLPSequenceRatio(), place)
    assert {finding.tensor for finding in found} == {"0_input_0"}


def test_an_embedding_of_numbers_that_are_not_whole_holds_no_tokens() -> None:
    trace = tokens(np.array([[0.0, 0, 0, 1.5]]), origin="PatchEmbedding")
    assert judge(NLPSequenceRatio(), trace)[1].status is Status.NOT_EVALUABLE


def test_classes_of_segments_and_positions_hold_no_tokens() -> None:
    trace = Trace().add(
        0, NAME, "input", np.array([0, 0, 0, 1]), origin="models.LearnedPositionalEmbedding", dtype="I64"
    )
    assert judge(NLPSequenceRatio(), trace)[1].status is Status.NOT_EVALUABLE


def test_embeddings_of_segments_and_positions_are_left_out_unless_named() -> None:
    trace = tokens([[0, 0, 0, 1]], name="Bert_embeddings.token_type_embeddings_input_0")
    assert judge(NLPSequenceRatio(), trace)[1].status is Status.NOT_EVALUABLE
    assert judge(NLPSequenceRatio(tensor_regex="token_type"), trace)[0]


def test_tensors_that_are_empty_or_cannot_be_read_are_not_judged() -> None:
    trace = tokens(np.empty((0, 4)), [[1, 1]], [[1, 2]])
    del trace.payloads[1]
    _, verdict = judge(NLPSequenceRatio(token_values="1"), trace)
    assert verdict.judged == 1
    assert verdict.missing == {"token ids could not be read (TensorUnavailableForStep)": 1}


def test_older_parameters_come_as_text_and_numbers_are_taken_as_well() -> None:
    rule = load_rule(
        "nlp_sequence_ratio:tensor_regex=.*embedding0_input_0,token_values=0,1,token_thresholds_percent=50,10"
    )
    assert rule == NLPSequenceRatio(
        tensor_regex=".*embedding0_input_0", token_values="0,1", token_thresholds_percent="50,10"
    )
    assert judge(NLPSequenceRatio(token_values=[1], token_thresholds_percent=[10.0]), tokens([[1, 2]]))[0]


@pytest.mark.parametrize(
    "parameters",
    [
        {"token_values": "0,1"},
        {"token_values": "0,1", "token_thresholds_percent": "50"},
        {"token_values": "", "token_thresholds_percent": ""},
        {"token_values": "zero"},
        {"token_thresholds_percent": "101"},
        {"tensor_regex": "("},
    ],
)
def test_parameters_that_cannot_work_are_refused(parameters: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        NLPSequenceRatio(**parameters)


def test_long_numbers_of_tokens_are_told_apart() -> None:
    ids = np.array([1234567] * 6 + [1234568] * 4)
    trace = Trace().add(0, NAME, "input", ids, origin="Embedding", payload=True, dtype="I64")
    rule = NLPSequenceRatio(token_values="1234567,1234568", token_thresholds_percent="30,30")
    assert [f.numbers["kind"] for f in judge(rule, trace)[0]] == ["token 1234567", "token 1234568"]


@pytest.mark.parametrize("token", ["nan", "inf"])
def test_a_token_is_a_number(token: str) -> None:
    with pytest.raises(ConfigError, match="token ids"):
        NLPSequenceRatio(token_values=token)
