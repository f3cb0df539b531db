"""The audit's campaign on the paper's own settings, and what an audit would have caught."""
