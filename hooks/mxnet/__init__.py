"""The hook for MXNet Gluon. `from tdcore.hooks.mxnet import Hook`.

    hook.py              Hook: the class that a script creates
    driver.py            which step a forward or an update belongs to, and when values are read
    block_values.py      capture of outputs, inputs, losses, parameters, gradients
    trainer_updates.py   calls before and after each update of a gluon.Trainer
    arrays.py            conversion of arrays for the ring

With TDCORE_DISABLED=1 this package exports the names of hooks/inert.py, and loads nothing else.
"""

from typing import TYPE_CHECKING

from tdcore.config.settings import disabled

if TYPE_CHECKING or not disabled():
    from tdcore.hooks.current import del_hook, set_hook
    from tdcore.hooks.mxnet.hook import Hook, create_from_json_file, get_hook
else:
    from tdcore.hooks.inert import Hook, create_from_json_file, del_hook, get_hook, set_hook

__all__ = ["Hook", "create_from_json_file", "del_hook", "get_hook", "set_hook"]
