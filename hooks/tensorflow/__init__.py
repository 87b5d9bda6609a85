"""The hook for training loops of TensorFlow. `from tdcore.hooks.tensorflow import Hook`.

    hook.py                 Hook: what a script wraps, registers and decorates
    captured_step.py        a function that is compiled twice, for unsaved and for saved steps
    repetition.py           whether a compiled function can run twice, and how it changes nothing
    driver.py               which step a tape or an update of an eager loop belongs to
    update_signs.py         whether the weights were updated, also where no optimizer reports it
    wrapped_tape.py         a tape that calls the hook
    optimizer_updates.py    calls hooks around each update by an optimizer
    optimizer_state.py      gradients, state and numbers of an optimizer
    keras_parts.py          layers, optimizers, losses and metrics of Keras, if the script uses them
    interception.py         TensorFlow's functions report to the collector while a saved step runs
    collector.py            tensors of one step, with their names
    variables.py            names of variables, layers and modules
    operations.py           operations of TensorFlow, which the hook for Keras uses too

Imports go from the top of this list to the bottom. Nothing imports Keras before the script has.
With TDCORE_DISABLED=1 the names are those of inert.py, and nothing else is loaded.
"""

from typing import TYPE_CHECKING

from tdcore.config.settings import disabled

if TYPE_CHECKING or not disabled():
    from tdcore.hooks.current import del_hook, set_hook
    from tdcore.hooks.tensorflow.hook import Hook, create_from_json_file, get_hook
else:
    from tdcore.hooks.inert import del_hook, set_hook
    from tdcore.hooks.tensorflow.inert import Hook, create_from_json_file, get_hook

__all__ = ["Hook", "create_from_json_file", "del_hook", "get_hook", "set_hook"]
