"""The hook for Keras 3. `from tdcore.hooks.keras import Hook`.

    hook.py                 Hook: a callback for fit(), evaluate() and predict()
    watching.py             Hook.watch(): capture of a model without passing the callback
    driver.py               which step a batch belongs to; saved and unsaved steps
    step_functions.py       the two compiled functions of a model and a mode
    interception.py         layers, optimizers and losses report to the collector while a step is traced
    collector.py            tensors of one step, with their names
    step_values.py          weights, optimizer state and learning rate before a step
    model_view.py           names of a model's layers and variables
    backend_in_use.py       the choice of a backend
    <name>_backend.py       operations of TensorFlow, JAX and torch; only these files import them
    backend.py              the operations that differ between the backends

Imports go from the top of this list to the bottom.
With TDCORE_DISABLED=1 the names are those of hooks/inert.py, and nothing else is loaded.
"""

from typing import TYPE_CHECKING

from tdcore.config.settings import disabled

if TYPE_CHECKING or not disabled():
    from tdcore.hooks.current import del_hook, set_hook
    from tdcore.hooks.keras.hook import Hook, create_from_json_file, get_hook
else:
    from tdcore.hooks.inert import Hook, create_from_json_file, del_hook, get_hook, set_hook

__all__ = ["Hook", "create_from_json_file", "del_hook", "get_hook", "set_hook"]
