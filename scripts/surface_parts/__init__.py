"""The parts of `scripts/surface.py`: each describes one side of a checkout from outside, as plain data."""
