"""TreeDepth: depth by links, depth by node numbers, and a real tree."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tdcore.errors import ConfigError
from tdcore.rules import Status, TreeDepth
from tdcore.rules.library.tree_depth import depths
from tdcore.rules.loading import load_rule
from tdcore.rules.trace import Trace
from tests.rules.judging import judge, same_in_any_cuts
from tests.rules.trainings import judge_run
from tests.rules.trees import grown_tree, save_trees, two_moons

Table = dict[str, npt.NDArray[np.float64]]


def chain(depth: int) -> Table:
    """Return nodes 0, (1, 2), (3, 4), ...: the second child is split again."""
    nodes = np.arange(2 * depth + 1.0)
    split = (nodes % 2 == 0) & (nodes < 2 * depth)
    return {
        "Tree": np.zeros(nodes.size),
        "ID": nodes,
        "Yes": np.where(split, nodes + 1, np.nan),
        "No": np.where(split, nodes + 2, np.nan),
    }


def tables(*steps: Table, payload: bool = True) -> Trace:
    trace = Trace()
    for step, table in enumerate(steps):
        for name, values in table.items():
            trace.add(step, f"trees/{name}", "custom", values, payload=payload)
    return trace


@pytest.mark.proves("TDC115", "fires")
def test_a_tree_grown_until_its_leaves_are_pure_is_found(tmp_path: Path) -> None:
    place = save_trees(tmp_path, [grown_tree(*two_moons(), max_depth=30)])
    (finding,), verdict = judge_run(TreeDepth(), place)
    assert verdict.status is Status.ISSUE
    assert (finding.tensor, finding.numbers["by"]) == ("trees/ID", "the links of its nodes")
    assert float(finding.numbers["depth"]) > 4


@pytest.mark.proves("TDC115", "quiet")
def test_the_same_tree_with_a_limit_stays_quiet(tmp_path: Path) -> None:
    place = save_trees(tmp_path, [grown_tree(*two_moons(), max_depth=4)])
    found, verdict = judge_run(TreeDepth(), place)
    assert not found
    assert verdict.status is Status.NO_ISSUE
    assert verdict.judged == 1


@pytest.mark.proves("TDC115", "not evaluable")
def test_the_rule_does_not_apply_to_a_network_without_trees(losses_run: Path) -> None:
    _, verdict = judge_run(TreeDepth(), losses_run)
    assert verdict.status is Status.NOT_APPLICABLE
    assert 'CollectionConfig(name="trees", include_regex=["^trees/"]' in TreeDepth().needs().fix


@pytest.mark.proves("TDC115", "boundary")
def test_a_depth_of_exactly_the_limit_does_not_fire_and_one_more_does() -> None:
    assert not judge(TreeDepth(), tables(chain(4)))[0]
    assert judge(TreeDepth(), tables(chain(5)))[0][0].numbers["depth"] == 5
    below = TreeDepth(direction="below")
    assert not judge(below, tables(chain(4)))[0]
    assert judge(below, tables(chain(3)))[0]


@pytest.mark.proves("TDC115", "boundary")
def test_without_links_it_is_the_logarithm_of_the_largest_number() -> None:
    at, above = ({"Node": np.arange(float(last + 1))} for last in (16, 17))
    assert not judge(TreeDepth(), tables(at, payload=False))[0]
    (finding,) = judge(TreeDepth(), tables(above, payload=False))[0]
    assert finding.numbers["depth"] == pytest.approx(np.log2(17))
    assert finding.numbers["by"] == "log2 of the largest node number"


def test_links_without_their_values_fall_back_to_numbers() -> None:
    (finding,) = judge(TreeDepth(depth=3.2), tables(chain(5), payload=False))[0]
    assert finding.numbers["by"] == "log2 of the largest node number"


def test_a_table_without_node_numbers_is_named() -> None:
    _, verdict = judge(TreeDepth(), tables({"Gain": np.ones(3)}))
    assert "table of trees without trees/ID and trees/Node" in verdict.reason


def test_steps_are_judged_one_by_one_in_any_windows() -> None:
    trace = tables(chain(3), chain(5), chain(4), chain(6))
    assert [finding.step for finding in same_in_any_cuts(TreeDepth(), trace)] == [1, 3]


def test_each_tree_has_its_depth_and_a_single_leaf_has_none() -> None:
    two = {name: np.concatenate([chain(2)[name], chain(3)[name]]) for name in chain(1)}
    two["Tree"] = np.repeat([0.0, 7.0], [5, 7])
    assert depths(two["Tree"], two["ID"], two["Yes"], two["No"]).tolist() == [2, 3]
    assert depths([0], [0], [np.nan], [np.nan]).tolist() == [0]


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(0, 20))
def test_depths_are_those_of_a_walk_from_the_root(seed: int, splits: int) -> None:
    random = np.random.default_rng(seed)
    level, leaves, yes, no = [0], [0], [np.nan], [np.nan]
    for _ in range(splits):
        parent = leaves.pop(int(random.integers(len(leaves))))
        yes[parent], no[parent] = len(level), len(level) + 1
        leaves += [len(level), len(level) + 1]
        level += [level[parent] + 1] * 2
        yes += [np.nan] * 2
        no += [np.nan] * 2
    order = random.permutation(len(level))
    nodes = np.arange(len(level))[order]
    found = depths(np.full(len(level), 3), nodes, np.array(yes)[order], np.array(no)[order])
    assert found.tolist() == [max(level)]


@pytest.mark.parametrize(
    ("yes", "no", "why"),
    [
        ([1, -1, -1], [9, -1, -1], "links to nodes that it does not contain"),
        ([1, 0, -1], [2, 2, -1], "two parents, or no root"),
        ([1, -1], [2, -1], "differ in length"),
    ],
)
def test_a_table_that_is_no_tree_is_named(yes: list[int], no: list[int], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        depths([0, 0, 0], [0, 1, 2], yes, no)


def test_older_parameters_come_as_text() -> None:
    assert load_rule("tree_depth:depth=6") == TreeDepth(depth=6.0)
    assert load_rule("tree_depth:direction=below") == TreeDepth(direction="below")


@pytest.mark.parametrize("parameters", [{"depth": -1.0}, {"direction": "up"}])
def test_parameters_that_cannot_work_are_refused(parameters: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        TreeDepth(**parameters)
