"""The test kit for developers who test their software against maintenance: emulator, pytest plugin, scenarios, conformance.

The tests of forewarn use the same kit. It may import everything except the command line and the demo.
"""
