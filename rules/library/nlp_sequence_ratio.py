"""TDC113: token sequences that consist mostly of one token."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from tdcore.config.collection_config import CollectionConfig
from tdcore.config.save_config import SaveConfig
from tdcore.errors import ConfigError, RunError
from tdcore.rules.base import Finding, names_of, require
from tdcore.rules.columns import Mask
from tdcore.rules.requirements import STATISTICS, VALUES, Need
from tdcore.rules.rule_attributes import JudgedBy
from tdcore.rules.window import Window, compile_pattern

__all__ = ["NLPSequenceRatio"]

_NO_TOKENS = re.compile("token_?type|segment|position", re.IGNORECASE)
_CLASSES = r"\w*Embedding(Bag)?"  # includes classes whose names end with these names
_EMBEDDING = re.compile(rf"(.*\.)?{_CLASSES}")
_Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class NLPSequenceRatio:
    """Batches of token ids with too large a share of one token, such as padding.

    What it does:
        Counts the given tokens in the inputs of embeddings. The default is token 0, which is padding in most
        vocabularies.

    Why it matters:
        Padding costs as much as other tokens, and the model learns nothing from it: with 80 % padding, 80 %
        of the time is wasted. Many unknown tokens show that the vocabulary does not fit the text.

    Decides by:
        The rule fires if 100 x (occurrences of the token) / (number of ids in the tensor) > the threshold of
        the token, for each tensor and step. The saved statistics contain the count of token 0. For other
        tokens the rule needs the values. It reads the values only if the token is between the smallest and
        the largest id.

        Inputs are found by name, or by the class of their module. The class is Embedding. If the input has an
        integer dtype, the class can also be EmbeddingBag, or a class whose name ends with Embedding or
        EmbeddingBag. Modules whose names or classes are those of positions, segments or token types are left
        out. F.embedding is not a module: select its input with tensor_regex.

    Parameters:
        tensor_regex: regular expressions for names of tensors of token ids; a list, or one string with
            commas. None: inputs of embedding modules of tokens, and names as in smdebug (embedding0_input_0).
        token_values: token ids to count; a list, or one string with commas.
        token_thresholds_percent: one limit for each token, in percent; a list, or one string with commas.

    False alarms:
        - Other embeddings in whose inputs 0 is an ordinary value (categories, speakers): select the token
          embedding with tensor_regex.
        - Vocabularies in which 0 is not padding.
        - Sequences that are short by nature.

    Do:
        Sort or bucket sequences by length, pack several sequences into one, or cut the longest sequences. For
        unknown tokens, use a subword vocabulary made from the same kind of text.

    Source:
        M. M. Krell et al., Efficient sequence packing without cross-contamination, 2021.
    """

    code: ClassVar[str] = "TDC113"
    judged_by: ClassVar[JudgedBy] = "tensor"

    tensor_regex: str | Sequence[str] | None = None
    token_values: str | Sequence[float] = "0"
    token_thresholds_percent: str | Sequence[float] = "50"

    def __post_init__(self) -> None:
        for pattern in names_of(self.tensor_regex):
            compile_pattern(pattern)
        tokens, limits = self._numbers("token_values"), self._numbers("token_thresholds_percent")
        require(bool(tokens), self, "token_values", self.token_values, "one token or more")
        if len(tokens) != len(limits):
            raise ConfigError(
                f"NLPSequenceRatio.token_values names {len(tokens)} tokens and token_thresholds_percent "
                f"{len(limits)} limits; give one limit for each token"
            )
        for token in tokens:
            require(abs(token) < np.inf, self, "token_values", token, "token ids")
        for limit in limits:
            require(0 <= limit <= 100, self, "token_thresholds_percent", limit, "percentages, 0 to 100")

    def needs(self) -> Need:
        """Token ids: statistics, or values if a token other than 0 is counted."""
        values, patterns = any(self._numbers("token_values")), names_of(self.tensor_regex)
        return Need(
            what=f"token ids ({'the values' if values else 'statistics'} of inputs of an Embedding)",
            captures=(
                CollectionConfig(
                    name="input_sequence",
                    include_regex=patterns or ("embedding0_input_0",),
                    module_regex=() if patterns else (f"^{_CLASSES}_input",),
                    save_config=SaveConfig(save_interval=100),
                    reduction_config=VALUES if values else STATISTICS,
                ),
            ),
            payload=values,
        )

    def check(self, window: Window) -> Iterator[Finding]:
        """One finding per tensor, step and token above its limit."""
        wanted = self._inputs(window) & window.ok
        limits = zip(self._numbers("token_values"), self._numbers("token_thresholds_percent"), strict=True)
        for token, limit in limits:
            rows, counts = _by_statistics(window, wanted) if token == 0 else _by_values(window, wanted, token)
            total = window.columns.ints("count")[rows]
            window.judged(len(rows))
            percent = 100.0 * counts / total
            hits = np.flatnonzero(percent > limit)
            for at in hits[window.listed_at(rows[hits])].tolist():
                share = float(percent[at])
                yield window.finding(
                    self,
                    int(rows[at]),
                    numbers={
                        "kind": f"token {token:.15g}",
                        "token": token,
                        "percent": share,
                        "threshold_percent": limit,
                        "count": int(counts[at]),
                        "ids": int(total[at]),
                    },
                    why=f"token {token:.15g} makes up {share:.3g} % of {total[at]} ids, above {limit:g} %",
                    do="bucket sequences by length or pack them; for unknown tokens fit the vocabulary",
                )

    def _numbers(self, name: str) -> tuple[float, ...]:
        """A parameter that is a list of numbers. Raises ConfigError."""
        value = getattr(self, name)
        if isinstance(value, str):
            value = names_of(value)
        values: Any = [value] if isinstance(value, (int, float)) else value
        try:
            return tuple(float(each) for each in values)
        except (TypeError, ValueError):
            raise ConfigError(
                f'NLPSequenceRatio.{name} must be numbers, such as "0,1", got {value!r}'
            ) from None

    def _inputs(self, window: Window) -> Mask:
        patterns = names_of(self.tensor_regex)
        if patterns:
            return window.named(patterns)
        columns = window.columns
        whole = columns.where("dtype", lambda dtype: dtype.startswith(("I", "U")))
        itself = columns.where("origin", lambda origin: origin.rpartition(".")[2] == "Embedding")
        embedding = itself | (whole & columns.where("origin", _may_embed_tokens))
        tokens = columns.where("name", lambda name: not _NO_TOKENS.search(name))
        found: Mask = (window.kind("input") & embedding & tokens) | window.named(["embedding0_input_0"])
        return found


def _may_embed_tokens(origin: str) -> bool:
    """Whether the inputs of a module of this class may be token ids."""
    return _EMBEDDING.fullmatch(origin) is not None and not _NO_TOKENS.search(origin.rpartition(".")[2])


def _by_statistics(window: Window, wanted: Mask) -> tuple[_Ints, _Ints]:
    """(rows that can be judged, number of zeros in each row)."""
    window.missing("token ids saved without statistics", int(np.sum(wanted & ~window.counted)))
    rows = np.flatnonzero(wanted & window.counted & (window.columns.ints("count") > 0))
    return rows, window.columns.ints("zero_count")[rows]


def _by_values(window: Window, wanted: Mask, token: float) -> tuple[_Ints, _Ints]:
    """(rows that can be judged, occurrences of the token in each row); reads rows that may have the token."""
    columns = window.columns
    wanted = wanted & ~(window.counted & (columns.ints("count") == 0))  # without empty tensors
    counted = wanted & window.counted
    outside = counted & ((columns.floats("min") > token) | (columns.floats("max") < token))
    there = columns.present("nbytes")
    lacking = wanted & ~outside & ~(there & counted)
    window.missing("token ids saved without their values", int(np.sum(lacking)))
    rows = np.flatnonzero(outside | (counted & there))
    counts = np.zeros(rows.size, dtype=np.int64)
    readable = np.ones(rows.size, dtype=np.bool_)
    for at in np.flatnonzero(~outside[rows]).tolist():
        try:
            ((_, values),) = window.read([int(rows[at])])
        except RunError as error:
            window.missing(f"token ids could not be read ({type(error).__name__})", 1)
            readable[at] = False
            continue
        counts[at] = int(np.sum(values == token))
    return rows[readable], counts[readable]
