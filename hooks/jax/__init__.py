"""The hook for JAX, Flax and Optax. `from tdcore.hooks.jax import Hook`.

    hook.py             Hook: capture_step(), tap(), and values that a step saves
    driver.py           which step a call belongs to; saved and unsaved steps
    captured_step.py    the function that takes the place of the step
    step_functions.py   the second, compiled function of a step, which returns its tensors
    tapped_jaxpr.py     lifts marked values out of a traced step
    interception.py     modules, optimizers and gradients report to the collector while a step is traced
    collector.py        tensors of one step, with their names
    step_values.py      arguments of a step: parameters, optimizer state, and their names
    taps.py             the operation that marks a value

Imports go from the top of this list to the bottom. Flax and Optax are used if the script has imported them.
With TDCORE_DISABLED=1 the names are those of hooks/inert.py, and nothing else is loaded.
"""

from typing import TYPE_CHECKING

from tdcore.config.settings import disabled

if TYPE_CHECKING or not disabled():
    from tdcore.hooks.current import del_hook, set_hook
    from tdcore.hooks.jax.hook import Hook, create_from_json_file, get_hook
else:
    from tdcore.hooks.inert import Hook, create_from_json_file, del_hook, get_hook, set_hook

__all__ = ["Hook", "create_from_json_file", "del_hook", "get_hook", "set_hook"]
