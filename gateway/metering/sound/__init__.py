"""Formats of sound, one a file: how long each plays, by what a decoder plays and not by what its head says."""
