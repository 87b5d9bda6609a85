"""Steps: the step to which a forward or an optimizer's step belongs, and the start and end of steps."""
