"""Handlers against the real thing."""
