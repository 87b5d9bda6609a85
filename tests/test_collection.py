"""Which tensor belongs to which collection."""

from __future__ import annotations

import copy
import gc
import weakref

import pytest

from tdcore.config.built_in_collections import OLDER_REGEX
from tdcore.config.collection import Collection
from tdcore.config.collection_config import CollectionConfig
from tdcore.config.collection_manager import CollectionManager
from tdcore.config.reduction_config import ReductionConfig
from tdcore.config.save_config import SaveConfig
from tdcore.errors import ConfigError, InvalidCollectionConfiguration
from tdcore.format.layout import TensorKind


def homes(name: str, kind: TensorKind) -> set[str]:
    return {collection.name for collection in CollectionManager() if collection.belongs(name, kind)}


@pytest.mark.parametrize(
    ("name", "kind", "expected"),
    [
        ("Net_conv1.weight", TensorKind.WEIGHT, {"weights"}),
        ("Net_conv1.bias", TensorKind.BIAS, {"biases"}),
        ("gradient/Net_conv1.weight", TensorKind.GRADIENT, {"gradients"}),
        ("gradient/Net_conv1.bias", TensorKind.GRADIENT, {"gradients"}),
        ("CrossEntropyLoss_output_0", TensorKind.LOSS, {"losses"}),
        ("CrossEntropyLoss_input_0", TensorKind.INPUT, {"inputs"}),
        ("aux_loss_output_0", TensorKind.OUTPUT, {"outputs", "losses"}),
        ("objective_output_0", TensorKind.LOSS, {"losses"}),
        ("conv1_output_0", TensorKind.OUTPUT, {"outputs"}),
        ("conv1_input_0", TensorKind.INPUT, {"inputs"}),
        ("weight_net_output_0", TensorKind.OUTPUT, {"outputs"}),
        ("scalar/accuracy", TensorKind.SCALAR, {"scalars"}),
        ("optimizer/exp_avg/Net_conv1.weight", TensorKind.OPTIMIZER_STATE, {"optimizer_variables"}),
        ("optimizer/group_0/lr", TensorKind.HYPERPARAMETER, {"hyperparameters"}),
        ("Net_cls_token", TensorKind.WEIGHT, {"weights"}),
        ("Net_dense.kernel", TensorKind.WEIGHT, {"weights"}),
        ("Net_norm.gamma", TensorKind.WEIGHT, {"weights"}),
        ("Net_attention.in_proj", TensorKind.WEIGHT, {"weights"}),
        ("Net_weight_bias", TensorKind.BIAS, {"biases"}),
    ],
)
def test_a_tensor_belongs_to_the_built_in_collections_of_its_name_and_kind(
    name: str, kind: TensorKind, expected: set[str]
) -> None:
    assert homes(name, kind) == expected | {"all"}


def test_a_pattern_of_the_user_selects_tensors_of_any_kind() -> None:
    weights = CollectionManager().get("weights")
    weights.include("relu.*output")
    assert weights.belongs("relu_output_0", TensorKind.OUTPUT)
    assert weights.belongs("Net_fc.weight", TensorKind.WEIGHT)


def test_setting_the_patterns_replaces_the_built_in_ones() -> None:
    weights = CollectionManager().get("weights")
    weights.include_regex = ["fc2"]
    assert not weights.belongs("Net_fc1.weight", TensorKind.WEIGHT)
    assert weights.include_regex == ["fc2"]


@pytest.mark.parametrize("name", ["weights", "biases"])
def test_the_older_patterns_select_parameters_by_name(name: str) -> None:
    collection = CollectionManager().get(name)
    collection.include_regex = [OLDER_REGEX[name]]
    assert collection.include_regex == [OLDER_REGEX[name]]
    word = {"weights": "weight", "biases": "bias"}[name]
    assert collection.belongs(f"Net_fc.{word}", TensorKind.WEIGHT)
    assert collection.belongs(f"Net_fc.{word}", TensorKind.BIAS)
    assert not collection.belongs("Net_cls_token", TensorKind.WEIGHT)
    assert not collection.belongs(f"optimizer/exp_avg/Net_fc.{word}", TensorKind.OPTIMIZER_STATE)
    assert not collection.belongs(f"{word}_net_output_0", TensorKind.OUTPUT)


def test_patterns_that_are_set_next_to_the_built_in_ones_add_to_them() -> None:
    weights = CollectionManager().get("weights")
    weights.include_regex = [*weights.include_regex, "relu"]
    assert weights.belongs("Net_cls_token", TensorKind.WEIGHT)
    assert weights.belongs("relu_output_0", TensorKind.OUTPUT)
    assert not weights.belongs("tanh_output_0", TensorKind.OUTPUT)


def test_the_list_of_patterns_may_be_changed_in_place() -> None:
    manager = CollectionManager()
    mine = manager.get("mine")
    regexes = mine.include_regex

    def selected() -> list[str]:
        return [name for name in ("a", "b", "c", "d") if mine.belongs(name, TensorKind.CUSTOM)]

    before = manager.version.value
    regexes.append("^a")
    assert manager.version.value > before
    assert selected() == ["a"]
    regexes.extend(["^b", "^c"])
    mine.include_regex += ["^d"]
    assert selected() == ["a", "b", "c", "d"]
    regexes = mine.include_regex
    regexes.remove("^a")
    assert regexes.pop() == "^d"
    assert (selected(), regexes) == (["b", "c"], ["^b", "^c"])
    regexes[0] = "^a"
    del regexes[1]
    regexes.insert(0, "^d")
    assert (selected(), mine.include_regex) == (["a", "d"], ["^d", "^a"])
    with pytest.raises(ConfigError, match="not a regular expression"):
        regexes.append("(")
    assert regexes == ["^d", "^a"]
    copied = copy.deepcopy(regexes)
    copied.append("^c")
    assert (type(copied), selected()) == (list, ["a", "d"])
    regexes.clear()
    assert selected() == []


def test_a_collection_takes_inputs_or_outputs_by_the_class_of_their_module() -> None:
    mine = CollectionManager().add(
        CollectionConfig(name="mine", module_regex=["^ReLU6?_output", "Emb.*input"])
    )
    assert mine.belongs("1_output_0", TensorKind.OUTPUT, "ReLU")
    assert mine.belongs("1_output_0", TensorKind.OUTPUT, "ReLU6")
    assert mine.belongs("0_input_0", TensorKind.INPUT, "Embedding")
    assert not mine.belongs("1_input_0", TensorKind.INPUT, "ReLU")
    assert not mine.belongs("1_output_0", TensorKind.OUTPUT, "PReLU")
    assert not mine.belongs("1_output_0", TensorKind.OUTPUT)
    assert not mine.belongs("ReLU_output.weight", TensorKind.WEIGHT, "ReLU_output")
    assert mine.is_filled


def test_settings_add_to_the_patterns_for_classes() -> None:
    manager = CollectionManager()
    for pattern in ("^Tanh_input", "^Sigmoid_input", "^Tanh_input"):
        manager.add(CollectionConfig(name="mine", module_regex=[pattern]))
    assert manager.get("mine").module_regex == ["^Tanh_input", "^Sigmoid_input"]


def test_a_pattern_for_classes_that_is_none_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"module_regex: '\(' is not a regular expression"):
        CollectionConfig(name="mine", module_regex="(")


def test_patterns_are_searched_not_matched_from_the_start() -> None:
    assert Collection("mine", "relu").belongs("block.relu_output_0", TensorKind.OUTPUT)


def test_a_listed_name_belongs_until_it_is_removed() -> None:
    mine = Collection("mine", tensor_names=["x"])
    assert mine.belongs("x", TensorKind.CUSTOM)
    mine.remove_tensor_name("x")
    assert not mine.belongs("x", TensorKind.CUSTOM)


def test_every_change_of_a_collection_is_seen_by_its_manager() -> None:
    manager = CollectionManager()
    mine = manager.add(Collection("mine"))
    versions = [manager.version.value]

    def changed() -> bool:
        versions.append(manager.version.value)
        return versions[-1] > versions[-2]

    mine.include("x")
    assert changed()
    mine.add_tensor_name("y")
    assert changed()
    mine.save_config = SaveConfig(save_interval=2)
    assert changed()
    mine.reduction_config = ReductionConfig()
    assert changed()
    mine.add_tensor_name("y")
    assert not changed()


def test_settings_for_a_built_in_collection_add_to_it() -> None:
    manager = CollectionManager()
    manager.add(CollectionConfig(name="gradients", save_config=SaveConfig(save_interval=7)))
    gradients = manager.get("gradients")
    assert gradients.save_config == SaveConfig(save_interval=7)
    assert gradients.belongs("gradient/Net_fc.weight", TensorKind.GRADIENT)


def test_asking_for_an_unknown_collection_makes_it_unless_told_not_to() -> None:
    manager = CollectionManager()
    with pytest.raises(
        InvalidCollectionConfiguration, match="no collection 'mine'; there are all, backward_gradients"
    ):
        manager.get("mine", create=False)
    assert manager.get("mine") is manager.get("mine")


def test_a_module_is_turned_into_patterns_and_not_kept_alive() -> None:
    class Module:
        pass

    module, gone = Module(), Module()
    mine = Collection("mine")
    mine.add_module_tensors(module, inputs=True)
    mine.add_module_tensors(gone)
    mine.resolve_modules(lambda found: "block.relu" if found is module else None)
    assert mine.belongs("block.relu_input_0", TensorKind.INPUT)
    assert mine.belongs("block.relu_output_1", TensorKind.OUTPUT)
    assert not mine.belongs("blockxrelu_output_0", TensorKind.OUTPUT)
    dead = weakref.ref(gone)
    del gone
    gc.collect()
    assert dead() is None


@pytest.mark.parametrize(
    "wrong", [{"name": ""}, {"name": "a", "include_regex": "["}, {"name": "a", "reduction_config": 3}]
)
def test_a_collection_that_cannot_work_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        CollectionConfig(**wrong)  # type: ignore[arg-type]
