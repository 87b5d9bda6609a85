"""The hook for MXNet Gluon. `from tdcore.hooks.mxnet import Hook`.

    hook.py              Hook: what a script makes and registers
    driver.py            which step a forward or an update belongs to, and what is read when
    block_values.py      captures outputs, inputs, losses, parameters, gradients
    trainer_updates.py   calls hooks around each update of a gluon.Trainer
    arrays.py            how arrays get to the ring

With TDCORE_DISABLED=1 the names are those of hooks/inert.py, and nothing else is loaded.
"""

from typing import TYPE_CHECKING

from tdcore.config.settings import disabled

if TYPE_CHECKING or not disabled():
    from tdcore.hooks.current import del_hook, set_hook
    from tdcore.hooks.mxnet.hook import Hook, create_from_json_file, get_hook
else:
    from tdcore.hooks.inert import Hook, create_from_json_file, del_hook, get_hook, set_hook

__all__ = ["Hook", "create_from_json_file", "del_hook", "get_hook", "set_hook"]
