"""Tests of what serves the agent's clients."""
