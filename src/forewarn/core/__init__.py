"""The rules as pure functions on frozen data. Time and new ids are arguments.

Imports no other package of forewarn, and no clock, randomness, files, network or threads.
"""
