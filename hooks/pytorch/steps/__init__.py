"""Steps: decides to which step a forward or an optimizer's step belongs; begins and ends steps."""
