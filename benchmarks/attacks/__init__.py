"""Attacks on a running gateway, one file each: what is tried, what must hold. See ``frame`` for how to write one."""
