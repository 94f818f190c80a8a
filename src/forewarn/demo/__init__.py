"""`forewarn demo`: an example fleet with guests that answer and maintenance that keeps coming; it leaves nothing behind."""
