"""The embedded store: one SQLite file and its SQL."""
