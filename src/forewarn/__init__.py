"""forewarn: machines learn of coming maintenance, prepare, and say "go"."""

__version__ = "0.1.0.dev0"
