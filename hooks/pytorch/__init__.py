"""The hook for PyTorch. `from tdcore.hooks.pytorch import Hook`.

    hook.py             Hook: the class that a script creates
    steps/              which step a forward or an optimizer's step belongs to
    forward/            forward hooks: outputs, inputs, losses, gradients of outputs
    parameters/         weights, gradients, optimizer state, weight updates
    distributed/        rank, local shards, outputs of collectives, replicas
    compile/            torch.compile, torch.export, torch.jit, torch.fx
    model/              structure of a model and names of its tensors
    auto_attach.py      search for the model of a script under `tdcore run`
    takeover.py         one hook per model
    trainer_session.py  shared by the callbacks for Lightning and transformers

A module imports only modules that are below it in this list (tests/hooks/test_import_direction.py). With
TDCORE_DISABLED=1 this package exports the names of hooks/inert.py, and loads nothing else.
"""

from typing import TYPE_CHECKING

from tdcore.config.settings import disabled

if TYPE_CHECKING or not disabled():
    from tdcore.hooks.current import del_hook, set_hook
    from tdcore.hooks.pytorch.hook import Hook, create_from_json_file, get_hook
else:
    from tdcore.hooks.inert import Hook, create_from_json_file, del_hook, get_hook, set_hook

__all__ = ["Hook", "create_from_json_file", "del_hook", "get_hook", "set_hook"]
