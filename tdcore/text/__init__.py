"""Text for people: representations, quoting, steps and suggestions. Imports no other part of tdcore.

short_repr     representations that fit into one line
quoting        text from a run, made safe for a terminal or a log
step_text      a step as the training loop counts it
did_you_mean   the closest known name for an unknown name
natural_order  order of names in which numbers count by their value
"""
