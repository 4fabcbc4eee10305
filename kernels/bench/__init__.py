"""The check and the timing of every kernel on a GPU, in one run: ``python -m kernels bench``."""
