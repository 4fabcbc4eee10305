"""The parts that model families share."""
