"""`python -m forewarn.guest` is `forewarn-agent`."""

from __future__ import annotations

from forewarn.guest.main import main

main()
