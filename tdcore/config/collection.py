"""Collections: named groups of tensors, each with its own patterns, save interval and reductions.

A tensor belongs to a collection in any of these cases: its name matches one of the patterns (`re.search`);
its name is listed; it is an input or output of a module that was added or whose class matches; the collection
contains all tensors of its kind (a loss with any name is in "losses"). Collections are set up before the
training and may be changed during the training: the hook applies a change at its next step. Collections are
not thread-safe: change them from the training thread.

Built in: all, default (include_regex of the hook), weights (all parameters that are not biases), biases,
gradients, losses, inputs, outputs, output_gradients, scalars, custom (empty by default),
optimizer_variables, hyperparameters, and four collections that cost extra work and are captured only if
include_collections names them: backward_gradients, microbatch_gradients, weight_updates, update_ratios.
Gradients of outputs are also captured only on request: "all" does not contain them, and a pattern selects
them only if the pattern contains "output_gradient". OLDER_REGEX has smdebug's patterns for weights and
biases, which select by name.
"""

from __future__ import annotations

import json
import re
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, compress, repeat
from typing import Any, NamedTuple, Protocol

from tdcore.config.built_in_collections import (
    BOOSTING,
    BUILT_IN,
    OLDER_REGEX,
    ON_REQUEST,
    PARAMETERS,
    Kinds,
)
from tdcore.config.checks import patterns
from tdcore.config.collection_config import CollectionConfig
from tdcore.config.pattern_list import PatternList
from tdcore.config.reduction_config import ReductionConfig
from tdcore.config.save_config import SaveConfig, SaveConfigMode
from tdcore.errors import InvalidCollectionConfiguration
from tdcore.format.layout import TensorKind
from tdcore.modes import ModeKeys
from tdcore.text.short_repr import cut, how_many

__all__ = ["Collection", "ModuleTensors", "Version"]

_OF_MODULES = frozenset({TensorKind.INPUT, TensorKind.OUTPUT})
_ANY_NAME = ("", ".*")  # patterns that match every text


@dataclass(frozen=True, slots=True)
class ModuleTensors:
    """A weak reference to a module whose inputs or outputs belong to a collection."""

    module: weakref.ref[Any]
    inputs: bool
    outputs: bool


class Version:
    """A counter of changes, shared by all collections of one manager."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0


class Pattern(Protocol):
    """The members of a compiled regular expression that collections use."""

    @property
    def pattern(self) -> str:
        """Text of the pattern."""
        ...

    def search(self, string: str, /) -> object:
        """Return a true value if the pattern matches anywhere in the text."""
        ...


class _Tests(NamedTuple):
    """Tests for the tensors of one kind.

    Attributes:
        every: Whether all of them belong to the collection.
        searches: Searches in their names.
        of_module: Searches in "<class of the module>_<label of the kind>".
    """

    every: bool
    searches: tuple[Callable[[str], object], ...]
    of_module: tuple[Callable[[str], object], ...]


class Collection:
    """A named group of tensors that may be changed. The docstring of the module has the rules of membership.

    compile_pattern: compiles a pattern; RunPatterns.compile for patterns that come from a run.
    """

    def __init__(
        self,
        name: str,
        include_regex: str | Iterable[str] | None = None,
        tensor_names: Iterable[str] | None = None,
        reduction_config: ReductionConfig | None = None,
        save_config: SaveConfig | SaveConfigMode | Mapping[ModeKeys, SaveConfigMode] | None = None,
        save_histogram: bool = True,
        *,
        compile_pattern: Callable[[str], Pattern] = re.compile,
    ) -> None:
        if not isinstance(name, str) or not name:
            raise InvalidCollectionConfiguration(f"a collection needs a name, got {name!r}")
        self.name = name
        self.save_histogram = save_histogram  # a setting of smdebug's TensorBoard export; not used
        self._compile = compile_pattern
        self.version = Version()  # replaced by the manager's when a manager adds the collection
        self.seen: set[str] = set()  # names of captured tensors that belong here; filled by the hook
        self._own: Mapping[str, Kinds | None] = {}  # original patterns, if built in -> kinds that they select
        self._built_in: dict[Pattern, Kinds | None] = {}  # patterns of _own that are in use
        self._by_nature: Kinds = frozenset()
        self._patterns: list[Pattern] = []  # patterns of the user, for any kind
        self._module_patterns: list[Pattern] = []
        self._names: set[str] = set()
        self._modules: list[ModuleTensors] = []
        self._tests: dict[TensorKind, _Tests] = {}  # emptied by _changed()
        self._reduction_config: ReductionConfig | None = None
        self._save_config: SaveConfig | None = None
        self.include(include_regex or ())
        self.tensor_names = set(tensor_names or ())
        self.reduction_config = reduction_config
        self.save_config = save_config

    @classmethod
    def built_in(cls, name: str, compile_pattern: Callable[[str], Pattern] = re.compile) -> Collection:
        """The built-in collection of that name."""
        regexes, by_nature, kinds = BUILT_IN.get(name) or BOOSTING[name]
        collection = cls(name, compile_pattern=compile_pattern)
        collection._own = dict.fromkeys(regexes, kinds)
        if name in OLDER_REGEX:
            collection._own[OLDER_REGEX[name]] = PARAMETERS
        collection.include(regexes)
        collection._by_nature = by_nature
        collection._changed()
        return collection

    @property
    def include_regex(self) -> list[str]:
        """The patterns, as a list. Changes of the list change the collection; an assignment replaces it.

        An original pattern of a built-in collection selects only the kinds of this collection, even if the
        pattern is set again: ".*" in "weights" selects weights.
        """
        texts = [pattern.pattern for pattern in (*self._built_in, *self._patterns)]
        return PatternList(texts, self._replace_regex)

    @include_regex.setter
    def include_regex(self, regexes: str | Iterable[str]) -> None:
        self._replace_regex(regexes)

    def _changed(self) -> None:
        self._tests.clear()
        self.version.value += 1

    def _replace_regex(self, regexes: str | Iterable[str]) -> None:
        checked = self._texts("include_regex", regexes)
        self._built_in, self._patterns = {}, []
        self.include(checked)

    def include(self, regexes: str | Iterable[str]) -> None:
        """Add patterns, which are searched in tensor names (re.search)."""
        for text in self._texts("include_regex", regexes):
            if text in self._own:
                self._built_in[re.compile(text)] = self._own[text]
            else:
                self._patterns.append(self._compile(text))
        self._changed()

    def _texts(self, name: str, regexes: str | Iterable[str]) -> tuple[str, ...]:
        return patterns(name, regexes, check=self._compile is re.compile)

    @property
    def tensor_names(self) -> set[str]:
        """Listed names, and names of captured tensors that the collection selects by pattern or kind."""
        return self._names | self.seen

    @tensor_names.setter
    def tensor_names(self, names: Iterable[str]) -> None:
        self._names = {names} if isinstance(names, str) else set(names)
        self._changed()

    def add_tensor_name(self, name: str) -> None:
        """Add a name; the tensor belongs to the collection from the next step on."""
        if name not in self._names:
            self._names.add(name)
            self._changed()

    def has_tensor_name(self, name: str) -> bool:
        """Whether the tensor was listed, or was captured and belongs here."""
        return name in self.tensor_names

    def remove_tensor_name(self, name: str) -> None:
        """Remove a name that was added; a pattern may still select the tensor."""
        self._names.discard(name)
        self._changed()

    @property
    def module_regex(self) -> list[str]:
        """Patterns that select inputs and outputs by the class of their module; see CollectionConfig."""
        return [pattern.pattern for pattern in self._module_patterns]

    @module_regex.setter
    def module_regex(self, regexes: str | Iterable[str]) -> None:
        self._module_patterns = [self._compile(pattern) for pattern in self._texts("module_regex", regexes)]
        self._changed()

    def add_module_tensors(self, module: object, inputs: bool = False, outputs: bool = True) -> None:
        """Add the inputs and outputs of a module, to which the collection holds a weak reference."""
        self._modules.append(ModuleTensors(weakref.ref(module), inputs, outputs))
        self._changed()

    def resolve_modules(self, name_of: Callable[[object], str | None]) -> None:
        """Convert the modules of add_module_tensors() to patterns, except modules without a name so far."""
        waiting: list[ModuleTensors] = []
        for tensors in self._modules:
            name = name_of(tensors.module())
            if name is None:
                waiting.append(tensors)
                continue
            wanted = "|".join(["input"] * tensors.inputs + ["output"] * tensors.outputs)
            self.include(f"^{re.escape(name)}_({wanted})_")
        self._modules = waiting

    @property
    def save_config(self) -> SaveConfig | None:
        """Saved steps; None: the settings of the hook."""
        return self._save_config

    @save_config.setter
    def save_config(
        self, value: SaveConfig | SaveConfigMode | Mapping[ModeKeys, SaveConfigMode] | None
    ) -> None:
        self._save_config = None if value is None else SaveConfig.parse(value)
        self._changed()

    @property
    def reduction_config(self) -> ReductionConfig | None:
        """Saved statistics and values; None: the settings of the hook."""
        return self._reduction_config

    @reduction_config.setter
    def reduction_config(self, value: ReductionConfig | None) -> None:
        if value is not None and not isinstance(value, ReductionConfig):
            raise InvalidCollectionConfiguration(
                f"collection {self.name!r}: reduction_config must be a ReductionConfig, "
                f"got {type(value).__name__}"
            )
        self._reduction_config = value
        self._changed()

    @property
    def selection(self) -> tuple[object, ...]:
        """Key of all settings that belongs() depends on. The key is equal while no setting has changed."""
        patterns = (*self._built_in, None, *self._patterns, None, *self._module_patterns)
        return (*patterns, frozenset(self._names))

    @property
    def is_filled(self) -> bool:
        """Whether the user has set patterns, names or modules."""
        return bool(self._patterns or self._names or self._modules or self._module_patterns)

    @property
    def selects(self) -> bool:
        """Whether any tensor can belong to the collection."""
        return self.is_filled or bool(self._built_in or self._by_nature)

    def waits_for_names(self, known: Iterable[str]) -> bool:
        """Whether a user's pattern matches none of the known names, so that a later name may match."""
        names = list(known)
        return any(not any(pattern.search(name) for name in names) for pattern in self._patterns)

    def unmatched_patterns(self, names: Iterable[str]) -> list[str]:
        """The user's name patterns that match none of these names."""
        known = list(names)
        return [each.pattern for each in self._patterns if not any(map(each.search, known))]

    def unmatched_module_patterns(self, classes: Iterable[str]) -> list[str]:
        """Module patterns that match none of these texts ("<class>_output", "<class>_input")."""
        known = list(classes)
        return [each.pattern for each in self._module_patterns if not any(map(each.search, known))]

    @property
    def unseen_names(self) -> set[str]:
        """Listed names of tensors that were not captured so far."""
        return self._names - self.seen

    def speaks_of(self, word: str) -> bool:
        """Whether a pattern or a listed name contains the word."""
        return any(word in text for text in (*self.include_regex, *self._names))

    def belongs(self, name: str, kind: TensorKind, origin: str = "") -> bool:
        """Whether a tensor of that name and kind, of a module of class `origin`, belongs here."""
        every, searches, of_module = self._tests.get(kind) or self._tests_for(kind)
        if every or name in self._names:
            return True
        for search in searches:  # a loop, because this is called for every new name
            if search(name):
                return True
        return bool(of_module) and any(search(f"{origin}_{kind.label}") for search in of_module)

    def members(self, names: Sequence[str], kind: TensorKind, origins: Sequence[str]) -> Iterable[str]:
        """The names, of tensors of one kind, for which belongs() is true; perhaps some of them twice."""
        every, searches, of_module = self._tests.get(kind) or self._tests_for(kind)
        if every:
            return names
        if of_module:
            return compress(names, map(self.belongs, names, repeat(kind), origins))
        return chain(self._names.intersection(names), *(filter(search, names) for search in searches))

    def takes_every(self, kind: TensorKind) -> bool:
        """Whether every tensor of the kind belongs here, whatever its name."""
        return (self._tests.get(kind) or self._tests_for(kind)).every

    def _tests_for(self, kind: TensorKind) -> _Tests:
        built_in = [pattern for pattern, kinds in self._built_in.items() if kinds is None or kind in kinds]
        searched = [*self._patterns_for(kind), *built_in]
        tests = self._tests[kind] = _Tests(
            kind in self._by_nature or any(pattern.pattern in _ANY_NAME for pattern in searched),
            tuple(pattern.search for pattern in searched),
            tuple(pattern.search for pattern in self._module_patterns if kind in _OF_MODULES),
        )
        return tests

    def expect(self, names: Sequence[str]) -> None:
        """Search all these names in one call before belongs() is called for each. RE2 is then faster."""
        for pattern in (*self._built_in, *self._patterns):
            expect = getattr(pattern, "expect", None)
            if expect is not None:
                expect(names)

    def may_take(self, kind: TensorKind) -> bool:
        """False if no tensor of the kind can belong to the collection."""
        filled = self._patterns_for(kind) or self._names if kind is ON_REQUEST else self.is_filled
        if filled or kind in self._by_nature:
            return True
        return any(kinds is None or kind in kinds for kinds in self._built_in.values())

    def _patterns_for(self, kind: TensorKind) -> list[Pattern]:
        """The user's patterns that may select the kind."""
        if kind is not ON_REQUEST:
            return self._patterns
        return [pattern for pattern in self._patterns if ON_REQUEST.label in pattern.pattern]

    def configure(self, config: CollectionConfig) -> None:
        """Apply settings. Patterns and names are added to the existing ones."""
        self.include(config.include_regex)
        self.module_regex = [*self.module_regex, *config.module_regex]
        for name in config.tensor_names:
            self.add_tensor_name(name)
        if config.save_config is not None:
            self.save_config = config.save_config
        if config.reduction_config is not None:
            self.reduction_config = config.reduction_config

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Collection) and self.to_json_dict() == other.to_json_dict()

    def __hash__(self) -> int:
        return hash(self.name)

    def to_json_dict(self) -> dict[str, Any]:
        """Return the name, patterns, listed names and settings as JSON values."""
        return {
            "name": self.name,
            "include_regex": list(self.include_regex),
            "tensor_names": sorted(self._names),
            "save_config": self.save_config.to_json_dict() if self.save_config else None,
            "reduction_config": self.reduction_config.to_json_dict() if self.reduction_config else None,
            "save_histogram": self.save_histogram,
        }

    def to_json(self) -> str:
        """Return to_json_dict() as JSON text."""
        return json.dumps(self.to_json_dict())

    @classmethod
    def from_dict(cls, params: Mapping[str, Any]) -> Collection:
        """Create a collection from the result of to_json_dict(). Raises ConfigError for invalid values."""
        found = dict(params)
        for key, kind in (("save_config", SaveConfig), ("reduction_config", ReductionConfig)):
            if found.get(key) is not None:
                found[key] = kind.from_dict(found[key])
        try:
            return cls(**found)
        except TypeError as error:
            raise InvalidCollectionConfiguration(
                f"a collection cannot be made from {params}: {error}"
            ) from None

    @classmethod
    def from_json(cls, json_str: str) -> Collection:
        """Create a collection from the text of to_json(). Raises ConfigError."""
        try:
            found = json.loads(json_str)
        except ValueError as error:
            raise InvalidCollectionConfiguration(f"a collection: the text is not JSON: {error}") from error
        return cls.from_dict(found)

    def __repr__(self) -> str:
        seen = how_many(len(self.seen), "tensor")
        return cut(f"<Collection {self.name!r}: {seen} so far, include_regex={self.include_regex!r}>")
