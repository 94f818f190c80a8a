"""Runs pytest on the Windows machine: ROOT SITE_PACKAGES ARGUMENTS… (pytest and its dependencies are pure Python)."""

import os
import sys
from typing import Any

modules: dict[str, Any] = sys.modules
modules["_wmi"] = None  # Wine ends a program that asks WMI, as `platform` does
root, site_packages, *arguments = sys.argv[1:]
sys.path[:0] = [root, f"{root}\\src"]
sys.path.append(site_packages)
sys.dont_write_bytecode = True
os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"

import pytest

sys.exit(pytest.main(["-c", f"{root}\\tests\\integration\\windows\\pytest_inside.ini", "--rootdir", root, *arguments]))
