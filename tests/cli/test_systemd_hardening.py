"""The systemd units: how exposed they are by systemd's own measure, and the drop-ins that loosen them."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.waiting import PATIENCE_S

ROOT = Path(__file__).parents[2]
PACKAGING = ROOT / "packaging"
COMMAND_USER = PACKAGING / "forewarn-command-user.conf"
PAGE = (ROOT / "docs/guide/agent-hardening.md").read_text("utf-8")
DROP_INS = re.findall(r"```ini\n(.*?)```", PAGE, re.DOTALL)


def analyze(*arguments: str) -> str:
    """Return what systemd-analyze prints to both streams."""
    tool = shutil.which("systemd-analyze")
    assert tool is not None, "systemd-analyze is missing: run scripts/test_tools"
    ended = subprocess.run([tool, *arguments], capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    return ended.stdout + ended.stderr


def exposure(unit: Path) -> float:
    """Return the exposure from 0 (closed) to 10 (open)."""
    printed = analyze("security", "--offline=true", "--no-pager", str(unit))
    match = re.search(rf"Overall exposure level for {unit.name}: ([0-9.]+)", printed)
    assert match is not None, printed
    return float(match[1])


def with_drop_in(folder: Path, unit: str, drop_in: str) -> Path:
    """Return a copy of the unit with a drop-in beside it."""
    copy = folder / unit
    copy.write_text((PACKAGING / unit).read_text("utf-8"))
    (folder / f"{unit}.d").mkdir()
    (folder / f"{unit}.d" / "local.conf").write_text(drop_in)
    return copy


@pytest.mark.parametrize(("unit", "most"), [("forewarn-agent.service", 6.0), ("forewarn.service", 1.7)])
def test_a_unit_is_not_more_exposed_than_promised(unit: str, most: float) -> None:
    """`systemd-analyze security` rates the unit at most this high."""
    assert exposure(PACKAGING / unit) <= most


def test_the_agent_keeps_what_its_handlers_need() -> None:
    """Signals to other users' processes, their files, their ids, and every process in /proc."""
    text = (PACKAGING / "forewarn-agent.service").read_text("utf-8")
    allowed = " ".join(re.findall(r"^CapabilityBoundingSet=(.*)$", text, re.MULTILINE)).split()
    for capability in ("CAP_KILL", "CAP_DAC_OVERRIDE", "CAP_SETUID", "CAP_SETGID", "CAP_CHOWN"):
        assert capability in allowed
    # Each of these would hide something that a step may need: processes, /tmp, devices, a host name that is set later.
    for setting in ("ProtectProc", "PrivateTmp", "PrivateDevices", "ProtectClock", "DeviceAllow", "ProtectHostname"):
        assert f"\n{setting}=" not in text, setting


def test_the_page_has_drop_ins() -> None:
    """The tests below check each of them."""
    assert len(DROP_INS) >= 4


@pytest.mark.parametrize("drop_in", DROP_INS, ids=[str(number) for number in range(len(DROP_INS))])
def test_each_drop_in_of_the_page_loosens_the_agent(tmp_path: Path, drop_in: str) -> None:
    """systemd accepts it without a word, and it has an effect."""
    unit = with_drop_in(tmp_path, "forewarn-agent.service", drop_in)
    printed = analyze("verify", str(unit))
    assert "forewarn-agent" not in printed
    assert "local.conf" not in printed
    assert exposure(unit) > exposure(PACKAGING / "forewarn-agent.service")


def test_the_drop_in_that_hardens_the_agent_does_so(tmp_path: Path) -> None:
    """systemd accepts it, and rates the unit lower."""
    (drop_in,) = re.findall(r"```conf\n(.*?)```", PAGE, re.DOTALL)
    unit = with_drop_in(tmp_path, "forewarn-agent.service", drop_in)
    assert "local.conf" not in analyze("verify", str(unit))
    assert exposure(unit) < exposure(PACKAGING / "forewarn-agent.service") - 1


def test_the_drop_in_for_command_user_adds_three_rights(tmp_path: Path) -> None:
    """Without it the service cannot become another user; with it systemd allows that, and nothing else changes."""
    unit = with_drop_in(tmp_path, "forewarn.service", COMMAND_USER.read_text("utf-8"))
    assert "local.conf" not in analyze("verify", str(unit))
    plain, loosened = (
        set(re.findall(r"✗ (\S+)", analyze("security", "--offline=true", "--no-pager", str(each))))
        for each in (PACKAGING / "forewarn.service", unit)
    )
    assert loosened - plain == {
        "CapabilityBoundingSet=~CAP_KILL",
        "CapabilityBoundingSet=~CAP_SET(UID|GID|PCAP)",
        "SystemCallFilter=~@privileged",
    }
    assert plain <= loosened
