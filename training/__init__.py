"""How the weights that the gateway ships are made: one program for each, as in ``python -m training.injection``."""
