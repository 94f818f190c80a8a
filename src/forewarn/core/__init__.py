"""The rules, and nothing else: no clock, no store, no network, no randomness. Time and ids come in as arguments."""
