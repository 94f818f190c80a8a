"""The code that the SQL stores share: the store protocol on named queries, row codecs and page queries.

Each store keeps its SQL files in its own package.
"""
