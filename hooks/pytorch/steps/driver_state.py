"""State of a PyTorch hook between calls of PyTorch, and detection of updates that no optimizer makes.

    _updates          ids of the optimizers that have stepped in the open training step. Not empty: the next
                      training forward begins a step. Contains NONE_OPEN while no training step is open:
                      before the first training step, in a step of another mode that step() began, and
                      after the hook is closed
    _suspended        the open training step, not updated yet, while another step is the current one
    _called           ids of the modules called in the current step of another mode; None: in a training step
    _saves_training   the training step is saved, and gradients of it are still captured
    _may_be_attached  hooks of a saved step may still be attached
    _busy             the next training step must begin with _start_training(), because hooks may have to be
                      removed or signs of an update must be checked
    _attentive        True: the optimizer hooks call _before_optimizer() and _after_optimizer(). False: they
                      only record the optimizer's id. True, for example, if the step is saved, no step is
                      open, or backward passes are observed
    _inside           the optimizer whose closure runs

Threads: the training thread. Optimizer hooks may run in autograd's threads, one at a time.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

from torch.optim import Optimizer

from tdcore.hooks.base import BaseHook
from tdcore.hooks.clock import SuspendedStep
from tdcore.hooks.pytorch.compile.code_variants import CompiledRoot
from tdcore.hooks.pytorch.distributed.replicas import Replicas
from tdcore.hooks.pytorch.distributed.sharding import LocalShards
from tdcore.hooks.pytorch.forward.losses import LossHooks
from tdcore.hooks.pytorch.model.introspection import LiveObjects
from tdcore.hooks.pytorch.parameters.grad_scaler import GRAD_SCALER, Scalers
from tdcore.hooks.pytorch.parameters.optimizers import OptimizerNumbering
from tdcore.hooks.pytorch.steps.graphs import GraphStatistics
from tdcore.hooks.pytorch.steps.root import Root
from tdcore.hooks.step_timer import FORWARD
from tdcore.modes import ModeKeys

__all__ = ["EVAL", "NONE_OPEN", "PREDICT", "TRAIN", "WITH_GRADIENTS", "DriverState"]

TRAIN, EVAL, PREDICT = ModeKeys.TRAIN.value, ModeKeys.EVAL.value, ModeKeys.PREDICT.value
WITH_GRADIENTS = (TRAIN, ModeKeys.GLOBAL.value)
NONE_OPEN = -1
_IDLE_FORWARDS = 64


class DriverState(BaseHook):
    """State that is shared by the parts of the hook."""

    _rank_and_size: tuple[int, int]
    _step_phase = FORWARD

    def _start_driver(self) -> None:
        self._roots: list[Root] = []
        self._numbering = OptimizerNumbering()
        self._scalers = Scalers()
        self._gate = CompiledRoot()  # for the first root and compiled losses
        self._graphs = GraphStatistics(self._ring)
        self._local_shards = self._recorder.localize = LocalShards(self._names, self._notes, self._recorder)
        self._losses = LossHooks(self._recorder, weakref.WeakMethod(self._fault), self._notes, self._gate)
        self._replicas = Replicas()
        self._stack = ExitStack()
        self._by_hand = False  # step() was called: forwards begin no steps
        self._by_forward = False  # the clock is "forward"
        self._attentive = self._busy = True
        self._updates: set[int] = {NONE_OPEN}
        self._suspended: SuspendedStep | None = None
        self._called: set[int] | None = None
        self._other_has_graph = False  # forwards of the current step of another mode may be differentiated
        self._saves_training = False
        self._may_be_attached = False  # a saved step has not ended, or its hooks are still attached
        self._listens = False  # optimizer hooks are registered
        self._armed = False  # hooks are attached for a forward that may be compiled
        self._compiled_call = False  # the current forward is reported by compiled code
        self._begun_by: Root | None = None  # the root whose forward began the saved training step
        self._inside: weakref.ref[Optimizer] | None = None
        self._ours: dict[int, weakref.ref[Optimizer]] = {}  # optimizers that hold parameters of a root, by id
        self._foreign: dict[int, weakref.ref[Optimizer]] = {}  # optimizers without such parameters
        self._groups: dict[int, int] = {}  # number of their parameter groups
        self._watched: list[Root] = []  # roots whose backwards are observed in every step
        self._saved_steps = 0  # number of saved training steps
        # By id of an optimizer: the last saved step in which it stepped.
        self._saved_updates: dict[int, int] = {}
        # Further training forwards in this step; maximum of all earlier steps.
        self._joined = self._most_joined = 0
        self._joined_in: set[int] | None = None  # _updates of the step that _joined counts
        self._search_ended = 0  # end of the last search for optimizers; perf_counter_ns()
        self._idle_forwards = 0  # training forwards without an observed backward and a known optimizer
        self._scaler_states: list[tuple[weakref.ref[Any], Mapping[int, Any]]] = []
        self._clock.on_refresh = weakref.WeakMethod(self._resolve_modules)
        weakref.finalize(self, self._stack.close)

    def _search(self, root: Root) -> None:
        """Find the optimizers of a root at the first forward of any root."""
        root.searched = self._busy = True
        parameters = root.parameters.held() or []
        if any(one.requires_grad for one in parameters):
            objects = LiveObjects(Optimizer, GRAD_SCALER)
            root.parameters.optimizers.assign_owners(parameters, objects)
            self._scalers.look(objects)
            by_update = not (self._by_hand or self._by_forward)
            if by_update and not root.parameters.optimizers.any_alive and not root.view.flat:
                self._watch_backwards(root)

    def _watch_backwards(self, root: Root) -> None:
        if root not in self._watched:
            parameters = root.parameters.held() or []
            root.sentinel.ended = weakref.WeakMethod(root.backward_ended)
            root.sentinel.put_on(root.view.in_backward(parameters) if not root.view.late else parameters)
            root.signs.look(parameters)
            self._watched.append(root)
            self._attentive = True

    def _resolve_modules(self) -> None:
        """Add patterns to changed collections for modules of any root (add_module_tensors())."""
        names = {id(module.module()): module.name for root in self._roots for module in root.view.modules}
        for collection in self._collections:
            collection.resolve_modules(lambda module: names.get(id(module)))

    # Updates without an optimizer -------------------------------------------------------------------------

    def _look_for_signs(self) -> None:
        """Store weights and scalers when a training step begins, to detect updates without an optimizer."""
        for root in self._watched:
            root.sentinel.seen = False
            root.signs.look(root.parameters.held() or [])
        self._scaler_states = self._scalers.states()

    def _updated_by_hand(self) -> bool:
        """Whether a sign shows that a model without optimizer was updated since the step began."""
        watched = [root for root in self._watched if not root.unseen]
        if not any(root.sentinel.seen for root in watched):
            return self._trains_nothing()
        # A list, so that the signs of all roots are evaluated.
        signs = [root.signs.seen(root.parameters.held() or []) for root in watched]
        if any(signs):
            return True
        return not any(root.signs.ever or root.parameters.optimizers.any_alive for root in self._roots)

    def _trains_nothing(self) -> bool:
        """Whether each forward is a separate step: after many forwards without backward and optimizer."""
        if any(root.sentinel.ever or root.parameters.optimizers.any_alive for root in self._roots):
            return False
        self._idle_forwards += 1
        return self._idle_forwards >= _IDLE_FORWARDS

    def _scaler_updated(self) -> bool:
        """Whether a gradient scaler has ended an iteration since the step began, and skipped an optimizer."""
        for reference, states in self._scaler_states:
            scaler = reference()
            if scaler is not None and getattr(scaler, "_per_optimizer_states", states) is not states:
                known = {id(one) for root in self._roots for _, one in root.parameters.optimizers.alive()}
                return not known.isdisjoint(states)
        return False
