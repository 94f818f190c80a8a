"""Hosts that run libvirt: connections to them, the executor that works on their domains.

Of forewarn it imports `service`, `executors` and `core`. Only this package imports libvirt-python, the extra `libvirt`. Without
it the modules that need no connection can still be imported: the settings of the executor are known everywhere.
"""
