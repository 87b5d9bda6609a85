"""Which step a forward or an optimizer's step belongs to, and what happens as steps begin and end."""
