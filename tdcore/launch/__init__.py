"""Recording a training without creating a hook: td.watch() and `tdcore run`.

watch          td.watch(): one line in the training script
run            the command `tdcore run`, which records a script that is not changed
script         runs a script as python runs it
import_watch   a callback after the first import of a module
run_summary    the last lines that `tdcore run` prints
"""
