"""Unit tests of a policy: the real pipeline over scripted backends, in virtual time."""
