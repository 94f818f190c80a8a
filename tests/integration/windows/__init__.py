"""The guest side on Windows: CPython for Windows under Wine, which `scripts/test_tools` installs."""
