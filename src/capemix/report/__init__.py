"""The plot of an audit."""
