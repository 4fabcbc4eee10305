"""Ranks on other hosts: how rank 0 finds them, and how each proves that it may ask the other for anything."""
