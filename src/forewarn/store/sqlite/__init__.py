"""The SQLite store: one file and its SQL."""
