"""The laboratory of capemix: the paper's tables run again, experiments, and the pages they fill.

It imports capemix; capemix never imports it.
"""
