"""Trial: reader of a run that has ended or is still being written.

    run = create_trial("runs/demo")
    run.tensor("gradient/fc.weight").value(120)          # NumPy array
    run.stats("gradient/.*", steps=range(0, 500, 10))    # pyarrow.Table: a row per tensor, step and worker

Names and meanings are those of smdebug's trial. A Trial only reads: it takes no locks and does not change the
run. It works in any process on any machine that can read the files. Threads: one thread per Trial.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from tdcore.errors import ConfigError, TensorUnavailable
from tdcore.modes import ModeKeys
from tdcore.trial.collections import SavedCollection
from tdcore.trial.model_order import in_model_order
from tdcore.trial.notebook import trial_html
from tdcore.trial.tensor import Tensor
from tdcore.trial.tensor_list import first_rows
from tdcore.trial.trial_follow import TrialFollow
from tdcore.trial.trial_steps import TrialSteps
from tdcore.trial.trial_tables import TrialTables
from tdcore.trial.view import patterns

if TYPE_CHECKING:
    from tdcore.plot import Plots

__all__ = ["Trial"]


class Trial(TrialSteps, TrialTables, TrialFollow):
    """A run that is open for reading. Created by create_trial().

    Every method first reads new data of the run. Within `no_refresh` it does not.

    Attributes:
        name: Name for the user.
        path: Folder or URL of the run.
    """

    def _repr_html_(self) -> str:
        self._reader.auto_refresh()
        return trial_html(self, self._kinds())

    @property
    def plot(self) -> Plots:
        """Pictures of the run as matplotlib figures: `plot.layers("^gradient/")`. See docs/notebooks.md."""
        from tdcore.plot import Plots

        return Plots(self)

    def tensor_names(
        self,
        step: int | None = None,
        mode: ModeKeys = ModeKeys.GLOBAL,
        regex: str | Sequence[str] | None = None,
        collection: str | SavedCollection | None = None,
        *,
        show_prefixed_tensors: bool = False,
    ) -> list[str]:
        """Names of the saved tensors that pass all filters, sorted.

        Args:
            step: Only tensors that were saved at this step (of the mode). True and False are ignored, because
                smdebug's first argument is show_prefixed_tensors.
            mode: Mode of the step. Without a step, only tensors that were saved in this mode.
            regex: Only names in which one of these patterns is found.
            collection: Only tensors of this collection, a name or an object.
            show_prefixed_tensors: Accepted because smdebug's hook for Keras saves hidden tensors. No hook of
                tdcore saves hidden tensors, so the value has no effect.

        Raises:
            InvalidCollection: The run has no collection of this name.
        """
        if isinstance(step, bool):
            step = None
        if regex is not None and collection is not None:
            raise ConfigError("give regex or collection, not both: a collection has its own patterns")
        self._reader.auto_refresh()
        texts = self._reader.index.texts("name")
        codes = self._reader.saved_names(step, mode)
        names = sorted(texts[code] for code in codes)
        if regex is not None:
            tests = patterns(regex)
            names = [text for text in names if any(test.search(text) for test in tests)]
        if collection is not None:
            chosen = self.collection(collection) if isinstance(collection, str) else collection
            kinds = self._kinds()
            names = chosen.of({text: kinds[text] for text in names})
        return names

    def in_model_order(self, names: Iterable[str] | None = None) -> list[str]:
        """Sort names of tensors by kind, then by module, in the order of the modules in the model.

        Gradients and optimizer states are in the order of their parameters. Numbers in names count by value.

        Args:
            names: Names to sort. None: tensor_names().
        """
        wanted = self.tensor_names() if names is None else list(names)
        self._reader.auto_refresh()
        return in_model_order(wanted, first_rows(self._reader))

    def has_tensor(self, tensor_name: str) -> bool:
        """Whether a tensor of this name was saved."""
        self._reader.auto_refresh()
        code = self._reader.index.dictionaries["name"].code(tensor_name)
        return code >= 0 and self._reader.is_shown(code)

    def tensor(self, tensor_name: str) -> Tensor:
        """The tensor of this name. Raises TensorUnavailable if it was not saved so far."""
        if not self.has_tensor(tensor_name):
            error = TensorUnavailable(
                f"run {self.name!r} has no tensor {tensor_name!r}"
                f"{self.why_absent(tensor_name) or self._similar(tensor_name)}; "
                f"tensor_names() lists what was saved{self._when_open()}"
            )
            error.tname = tensor_name
            raise error
        return Tensor(self._reader, tensor_name)

    def _when_open(self) -> str:
        """A hint that the tensor may still be saved; empty if the run has ended."""
        return f". It may still appear: {self.open_hint}" if self.open_hint else ""

    def _kinds(self) -> dict[str, str]:
        """Kind of each tensor, from its first shown row."""
        index = self._reader.index
        texts, labels = index.texts("name"), index.texts("kind")
        kinds = self._reader.combinations(("name", "kind"))
        return {texts[code]: labels[kind] for code, kind in reversed(kinds)}  # the first row of a name counts

    def _similar(self, name: str) -> str:
        import difflib

        texts = self._reader.index.texts("name")
        close = difflib.get_close_matches(name[:200], texts[:5000], n=3, cutoff=0.6)
        return f"; did you mean {', '.join(map(repr, close))}?" if close else ""
