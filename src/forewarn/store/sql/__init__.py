"""What the SQL stores share: the protocol in named queries, row codecs, pages.

Each store keeps its SQL files in its own package.
"""
