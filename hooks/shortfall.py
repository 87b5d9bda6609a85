"""Shortfalls: requested tensors that a hook did not record, reported when the hook closes.

Independent of the framework. Each shortfall is a sentence in the log and in the note "not_recorded" of the
run, which `tdcore ls` and the reports of rules show. This code runs only when the hook closes, so it does not
slow down steps.

Three cases are reported: a collection that was due at a step and got no tensor; a pattern or name of the user
that matches no tensor; and a collection that can have no tensor (a misspelt name). Two kinds of collections
are not reported: collections that were due at no step, and collections for which many trainings have no
tensors (biases, optimizer state).
Threads: the thread of close().
"""

from __future__ import annotations

from collections.abc import Collection as Names
from collections.abc import Iterator
from dataclasses import dataclass

from tdcore.config.built_in_collections import BUILT_IN, CollectionKeys
from tdcore.config.collection import Collection
from tdcore.config.collection_manager import CollectionManager
from tdcore.config.defaults import COLLECTIONS
from tdcore.config.hook_config import HookConfig
from tdcore.hooks.capture_requests import REQUESTED
from tdcore.hooks.clock import Clock
from tdcore.modes import ModeKeys
from tdcore.text.did_you_mean import did_you_mean

__all__ = ["Possible", "Shortfalls"]

# Built-in collections that get tensors from the training of a model, each with the message if it is empty.
_OF_A_MODEL = {
    CollectionKeys.WEIGHTS: "no parameter was captured",
    CollectionKeys.GRADIENTS: "no gradient was captured",
    CollectionKeys.INPUTS: "no module's input was captured",
    CollectionKeys.OUTPUTS: "no module's output was captured",
}
_NO_LOSS = "no loss was captured; call register_loss(), or record_tensor_value() for a function"
_ONLY_IN_TRAINING = (CollectionKeys.GRADIENTS, CollectionKeys.LOSSES)
_WITH_GRADIENTS = (ModeKeys.TRAIN, ModeKeys.GLOBAL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Possible:
    """Tensors that the registered models have, captured or not.

    Attributes:
        names: Names of tensors.
        classes: "<class of a module>_output" and "<class of a module>_input".
        trains: Whether a parameter requires gradients.
    """

    names: Names[str] = ()
    classes: Names[str] = ()
    trains: bool = True


class Shortfalls:
    """The shortfalls of one hook.

    Args:
        given: The configuration of the user.
        config: The same configuration with the collections of rules.
    """

    def __init__(
        self, given: HookConfig, config: HookConfig, collections: CollectionManager, clock: Clock
    ) -> None:
        self._collections = collections
        self._clock = clock
        requested = dict.fromkeys(given.include_collections)
        if tuple(requested) == COLLECTIONS:
            requested.pop(CollectionKeys.LOSSES)  # the defaults of td.watch(), not requests of the user
        self._requested = requested
        own = {id(each) for each in given.collections}
        self._of_rules = {
            pattern
            for each in config.collections
            if id(each) not in own
            for pattern in (*each.include_regex, *each.module_regex)
        }
        self._requests_model = given.save_all or bool(given.include_regex)

    @property
    def needs_a_model(self) -> list[str]:
        """Names of the user's requests that need a registered model, for a message."""
        found = [name for name in _OF_A_MODEL if name in self._requested]
        return found or ["tensors of a model"] * self._requests_model

    def of_collections(self, possible: Possible) -> Iterator[str]:
        """A sentence for each collection that was due and is incomplete."""
        for name in self._clock.included:
            collection = self._collections.get(name)
            modes = self._clock.due_modes(name)
            if not modes or name.startswith(REQUESTED):  # collections of requests are noted with the request
                continue
            if collection.is_filled:
                yield from self._unmatched(collection, possible)
            elif not collection.selects:
                if name != CollectionKeys.DEFAULT and not collection.seen:
                    hint = did_you_mean(name, BUILT_IN)
                    yield f"collection {name!r} is empty: it has no pattern and no tensor{hint}"
            elif name in self._requested and not collection.seen:
                yield from _empty(name, modes, possible)

    @property
    def none_due(self) -> bool:
        """Whether no collection was due at any step."""
        return not any(map(self._clock.due_modes, self._clock.included))

    def _unmatched(self, collection: Collection, possible: Possible) -> Iterator[str]:
        known = {*collection.seen, *possible.names}
        where = "" if collection.name == CollectionKeys.DEFAULT else f" of collection {collection.name!r}"
        patterns = collection.unmatched_patterns(known)
        for pattern in patterns:
            if pattern not in self._of_rules:
                yield f"pattern {pattern!r}{where} matches no tensor{did_you_mean(pattern, known)}"
        for pattern in collection.unmatched_module_patterns(possible.classes):
            if pattern not in self._of_rules:
                hint = did_you_mean(pattern, possible.classes)
                yield f"module_regex {pattern!r}{where} matches no module{hint}"
        for name in sorted(collection.unseen_names - known):
            yield f"tensor {name!r}{where} did not exist at any saved step{did_you_mean(name, known)}"


def _empty(name: str, modes: list[ModeKeys], possible: Possible) -> Iterator[str]:
    if name in _ONLY_IN_TRAINING and not any(mode in _WITH_GRADIENTS for mode in modes):
        return  # evaluations only
    if name == CollectionKeys.GRADIENTS and not possible.trains:
        return  # all parameters are frozen; another note reports this
    if name == CollectionKeys.LOSSES:
        yield f"collection {name!r}: {_NO_LOSS}"
    elif name in _OF_A_MODEL:
        yield f"collection {name!r}: {_OF_A_MODEL[name]}"
