"""Replicas of a backend: who they are, which of them are drained, how much each gets."""
