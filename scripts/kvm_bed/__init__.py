"""Two real libvirt hosts with tiny guests on this machine, for the tests and for `make demo-kvm`.

`bed.py` starts and controls them, `keeper.py` holds their namespaces and removes everything at the end, and `guest_image.py`
builds what the guests boot. It needs root and the packages that `scripts/test_tools` installs. QEMU emulates the processor (TCG).
"""
