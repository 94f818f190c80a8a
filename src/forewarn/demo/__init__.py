"""`forewarn demo`: an example fleet with real agents and maintenance that repeats for ever. It leaves nothing behind.

Like the test kit it may import everything except the command line; it does not import the test kit.
"""
