"""The test kit: what we test forewarn with, for whoever must prove that their software survives maintenance."""
