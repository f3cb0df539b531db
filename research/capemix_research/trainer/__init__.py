"""The paper's CNN trained many at a time on a GPU, for experiments of thousands of models."""
