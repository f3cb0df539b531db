"""The judgement: results beside the paper's numbers, as a page and its figures.

It meets the experiments only through files: what they measured, and the paper's numbers.
"""
