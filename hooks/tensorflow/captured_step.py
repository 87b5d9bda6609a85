"""CapturedStep: a function of the user that is compiled twice, for unsaved and for saved steps.

    own          the function as tf.function compiles it. It runs in unsaved steps
    capturing    the same with the tensors of the step as further outputs, one for each selection of tensors

In a saved step the own function is traced first, as without a hook, so it creates the variables. Then the
capturing function computes the tensors, and its changes of variables are taken back. At last the own function
runs. So the training has the same bits by construction: TensorFlow optimizes a graph with further outputs in
another way, which may round differently. A function that has other effects than changes of variables, or
random numbers of its own, is not run twice.
Threads: the training thread.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Mapping
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from tdcore.format.layout import TensorKind
from tdcore.hooks.interception import collecting
from tdcore.hooks.plan import Plan
from tdcore.hooks.step_record import StepValue
from tdcore.hooks.step_timer import REST
from tdcore.hooks.tensorflow.collector import TapeCollector
from tdcore.hooks.tensorflow.interception import as_traced, not_converted
from tdcore.hooks.tensorflow.operations import plain_variable, read_variable
from tdcore.hooks.tensorflow.repetition import unchanged_variables, why_unrepeatable

if TYPE_CHECKING:
    from tdcore.hooks.tensorflow.driver import TapeDriver

__all__ = ["CapturedStep"]

_KEPT = 4  # capturing functions
_STATE = (TensorKind.WEIGHT, TensorKind.BIAS, TensorKind.CUSTOM, TensorKind.OPTIMIZER_STATE)

Function = Any  # a tf.function
Selection = tuple[tuple[object, ...], ...]


class _Capturing:
    """The capturing function for one selection of tensors, and the results of its last trace."""

    def __init__(self, step: CapturedStep, plan: Plan) -> None:
        self.origins: dict[str, str] = {}
        self.absent: dict[str, str] = {}
        self.metrics: list[weakref.ref[Any]] = []
        self.plan = plan
        self.function = step.compiled(self._traced(step))

    def _traced(self, step: CapturedStep) -> Callable[..., Any]:
        @functools.wraps(step.python_function)
        def capturing(*args: Any, **kwargs: Any) -> Any:
            collector = step.driver.new_collector(self.plan)
            with collecting(collector):
                returned = as_traced(step.python_function)(*args, **kwargs)
            collector.guarded("gradients", collector.settle)
            self.origins.update(collector.origins)
            self.absent = collector.absent
            self.metrics = collector.metrics
            return returned, collector.values

        return not_converted(capturing)


class CapturedStep:
    """A function in the place of a tf.function. Each call is a step.

    Attributes of the tf.function, such as get_concrete_function, are those of the own function.

    Args:
        driver: The hook.
        function: The function of the user, or a tf.function.
        mode: The mode of its steps, a ModeKeys value; 0: the hook's.
        options: Arguments of tf.function.
    """

    def __init__(
        self, driver: TapeDriver, function: Callable[..., Any], mode: int, options: Mapping[str, Any]
    ) -> None:
        given = isinstance(function, type(tf.function(lambda: None)))
        self.python_function = function.python_function if given else function  # type: ignore[attr-defined]
        functools.update_wrapper(self, self.python_function)
        self.driver = driver
        self.mode = mode
        self.optimizers: list[weakref.ref[Any]] = []  # that update in the step
        self.own: Function = function if given else tf.function(function, **options)
        self._options = _options_of(function) if given else dict(options)
        self._made: dict[Selection, _Capturing] = {}
        self._uncapturable: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()  # by graph

    def compiled(self, function: Callable[..., Any]) -> Function:
        """Compile a function as the own one is compiled."""
        return tf.function(function, **self._options)

    def optimizer_traced(self, optimizer: Any) -> None:
        """Called when an update of an optimizer becomes a part of the step."""
        if not any(reference() is optimizer for reference in self.optimizers):
            self.optimizers.append(weakref.ref(optimizer))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function: one step. Within another function that is traced, a part of its step."""
        if self.driver._off or not tf.executing_eagerly():
            return self.own(*args, **kwargs)
        return self._step(_itself, args, kwargs)

    def __get__(self, instance: Any, owner: type | None = None) -> Callable[..., Any]:
        """The step of an object, where the function is a method."""
        if instance is None:
            return self
        return _Bound(self, instance, owner)

    def __getattr__(self, name: str) -> Any:
        if name == "own":
            raise AttributeError(name)
        return getattr(self.own, name)

    # Steps ------------------------------------------------------------------------------------------------

    def _step(
        self, bind: Callable[[Function], Function], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        driver = self.driver
        if driver._control_changed():
            driver._check_control_guarded()
        plan = None
        spent = driver._expect_row()
        try:
            plan = driver.begin_captured(self.mode)
        except Exception as error:
            driver._fault("steps", error)
        has_batch = True
        try:
            if plan is None:
                return self._run_own(bind(self.own), args, kwargs)
            return self._run_saved(plan, bind, args, kwargs)
        except BaseException as error:
            has_batch = not _is_end(error)
            raise
        finally:
            if has_batch:
                driver._begin_row(spent)
            driver._timer.enter(REST)

    def _run_saved(
        self, plan: Plan, bind: Callable[[Function], Function], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        start = perf_counter_ns()
        run = _Run(self, plan, bind, args, kwargs)
        try:
            return run.result()
        finally:
            self.driver._recorder.spent_ns += perf_counter_ns() - start - run.training_ns

    def _run_own(self, own: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        driver = self.driver
        before, driver.running = driver.running, self
        try:
            return own(*args, **kwargs)
        except BaseException as error:
            if _is_end(error):
                driver._withdraw_step()
            raise
        finally:
            driver.running = before

    def uncapturable(self, graph: Any) -> str:
        """Why no second function can compute the tensors of a graph, as a clause; "" if one can."""
        found = self._uncapturable.get(graph)
        if found is None:
            found = self._uncapturable[graph] = why_unrepeatable(graph)
        return found

    def capturing(self, plan: Plan) -> _Capturing:
        """The capturing function for the plan."""
        key = tuple((each.name, *each.selection) for each in plan.collections)
        found = self._made.pop(key, None) or _Capturing(self, plan)
        self._made[key] = found  # the newest last
        for old in list(self._made)[:-_KEPT]:
            del self._made[old]
        found.plan = plan
        return found


class _Bound:
    """A captured method of one object."""

    def __init__(self, step: CapturedStep, instance: Any, owner: type | None) -> None:
        functools.update_wrapper(self, step.python_function)
        self._step, self._instance, self._owner = step, instance, owner

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """See CapturedStep.__call__()."""
        step = self._step
        if step.driver._off or not tf.executing_eagerly():
            return self._bind(step.own)(*args, **kwargs)
        return step._step(self._bind, args, kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._bind(self._step.own), name)

    def _bind(self, function: Function) -> Function:
        return function.__get__(self._instance, self._owner)


class _Run:
    """One saved step.

    Attributes:
        training_ns: Time of the training in it.
    """

    def __init__(
        self,
        step: CapturedStep,
        plan: Plan,
        bind: Callable[[Function], Function],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> None:
        self.training_ns = 0
        self._step = step
        self._driver = step.driver
        self._plan = plan
        self._bind = bind
        self._args = args
        self._kwargs = kwargs
        self._own = bind(step.own)
        self._before: dict[
            int, Any
        ] = {}  # values of variables before the step, by id() of the plain variable
        self._variables: list[Any] = []  # of the graph
        self._values: list[StepValue] = []

    def result(self) -> Any:
        """Run the step and record it. Returns the result of the user's function."""
        if tf.config.functions_run_eagerly():
            return self._run_eagerly()
        graph = self._graph()
        if graph is None or self._driver._off:
            return self._run_own()
        why = ""
        try:
            why = self._step.uncapturable(graph)
        except Exception as error:
            self._driver._fault("capture", error)
            return self._run_own()
        if why:
            name = self._step.python_function.__name__
            self._driver._note_uncaptured(f"outputs of layers and gradients of {name}(): {why}")
            self._driver._guarded("weights", self._read_before)
            returned = self._run_own()
            self._driver._guarded("steps", self._record, {}, None)
            return returned
        return self._run_capturing()

    def _graph(self) -> Any:
        """The graph of the own function, traced as its call would trace it; None if it needs the call."""
        driver = self._driver
        before, driver.running = driver.running, self._step
        version = driver._collections.version.value
        start = perf_counter_ns()
        try:
            graph = self._own.get_concrete_function(*self._args, **self._kwargs).graph
        except Exception:
            return None  # the call raises the same error, or it creates variables as only a call can
        finally:
            driver.running = before
            self.training_ns += perf_counter_ns() - start
        self._variables = sorted(map(plain_variable, graph.variables), key=lambda each: str(each.name))
        if driver._collections.version.value != version:  # the function has called save_tensor()
            self._plan = driver._clock.plan = driver._clock.plan_now()
        return graph

    def _run_capturing(self) -> Any:
        """Compute the tensors with the capturing function, then take its changes back and run the own one."""
        driver, made = self._driver, None
        taps: dict[str, Any] | None = None
        try:
            made = self._step.capturing(self._plan)
            function = self._bind(made.function)
            with driver.intercepted():
                concrete = function.get_concrete_function(*self._args, **self._kwargs)  # nothing runs
            self._read_before()
            with unchanged_variables(concrete):
                _, taps = function(*self._args, **self._kwargs)
        except Exception as error:
            returned = self._run_own()  # raises the error, if it is one of the training
            driver._fault("capture", error)
            return returned
        returned = self._run_own()
        driver._guarded("steps", self._record, taps, made)
        return returned

    def _run_own(self) -> Any:
        start = perf_counter_ns()
        try:
            return self._step._run_own(self._own, self._args, self._kwargs)
        finally:
            self.training_ns += perf_counter_ns() - start

    def _run_eagerly(self) -> Any:
        """Run the user's function at once, as tf.config.run_functions_eagerly() requires."""
        driver = self._driver
        driver._guarded("weights", self._read_before)
        collector = driver.new_collector(self._plan)
        before, driver.running = driver.running, self._step
        try:
            with driver.intercepted(), collecting(collector):
                returned = self._own.python_function(*self._args, **self._kwargs)
        finally:
            driver.running = before
        collector.guarded("gradients", collector.settle)
        driver._guarded("steps", self._record, collector.values, collector)
        return returned

    # Values -----------------------------------------------------------------------------------------------

    def _read_before(self) -> None:
        """Read the variables and the optimizers before the step."""
        driver = self._driver
        driver._meet_models()
        optimizers = [each for reference in self._step.optimizers if (each := reference()) is not None]
        if any(map(self._plan.may_take, _STATE)):
            named = [each.variable for each in driver._variables.weights()]
            for variable in map(plain_variable, (*self._variables, *named)):
                self._before[id(variable)] = read_variable(variable)
        for optimizer in optimizers:
            driver._guarded(
                "optimizer",
                lambda each: self._values.extend(driver.optimizer_values(self._plan, each, read_variable)),
                optimizer,
            )

    def _record(self, taps: dict[str, Any], found: _Capturing | TapeCollector | None) -> None:
        """Record the step. found: the collector that the trace has filled."""
        driver = self._driver
        for variable in self._variables:
            if variable.trainable:
                driver._variables.add(variable)

        def read(variable: Any) -> Any:
            return self._before.get(id(plain_variable(variable)))

        values = [*self._values, *driver.weight_values(self._plan, read, skip=set())]
        if found is None:
            driver.record(self._plan, values, taps)
        else:
            values += driver.metric_values(self._plan, found.metrics)
            driver.record(self._plan, values, taps, origins=found.origins, absent=found.absent)
        driver.note_frozen()


def _itself(function: Function) -> Function:
    return function


def _is_end(error: BaseException) -> bool:
    return isinstance(error, (StopIteration, tf.errors.OutOfRangeError))


def _options_of(function: Function) -> dict[str, Any]:
    """The arguments with which a tf.function was made."""
    return {
        "input_signature": function.input_signature,
        "autograph": function._autograph,
        "jit_compile": function._jit_compile,
        "reduce_retracing": function._reduce_retracing,
    }
