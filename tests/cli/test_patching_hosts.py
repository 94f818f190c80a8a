"""The programs of the page about patching hosts work as printed: with a real service, and a stand-in for ssh."""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from threading import Event, Thread

import pytest

from tests.cli.command_line import CommandLine, environment, serving
from tests.support.waiting import PATIENCE_S

PAGE = (Path(__file__).parents[2] / "docs/guide/patching-hosts.md").read_text("utf-8")
# One file per running machine, in a folder per host; `patched` gets a line with the machines that ran at that moment.
SSH = """#!/bin/sh
set -eu
cd "$HOME/hosts/$1"
case $2-${3-} in
virsh-shutdown) rm "$4" ;;
virsh-start) touch "$4" ;;
virsh-list) ls ;;
patch-and-reboot-) echo "$1:$(ls)" >>"$HOME/patched" ;;
esac
"""
POLL_EVERY_S = 1.0
# The page's programs run some twenty commands, one after the other.
WITHIN_S = 4 * PATIENCE_S

# The page's loop waits 5 s at a time; a test need not.
SLEEP = "#!/bin/sh\nexec /bin/sleep 0.02\n"


def printed(mark: str) -> str:
    (found,) = [text for text in re.findall(r"^```sh\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE) if mark in text]
    return str(found)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home with the page's programs, and with a PATH where `ssh` leads to pretended hosts."""
    programs = tmp_path / "bin"
    programs.mkdir()
    forewarn = f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m forewarn "$@"\n'
    for name, text in (
        ("ssh", SSH), ("sleep", SLEEP), ("forewarn", forewarn), ("patch-host", printed("/usr/local/bin/patch-host:")),
        ("work-on-machines", printed("/usr/local/bin/work-on-machines:")),
    ):  # fmt: skip
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    for host, machines in {"rack0": ("shop.web-0", "db.db-0"), "rack1": ("shop.web-1", "db.db-1")}.items():
        (tmp_path / "hosts" / host).mkdir(parents=True)
        for machine in machines:
            (tmp_path / "hosts" / host / machine).touch()
    return tmp_path


def variables(home: Path) -> dict[str, str]:
    return {"HOME": str(home), "PATH": f"{home / 'bin'}:{os.environ['PATH']}"}


def running(home: Path, host: str) -> set[str]:
    return {each.name for each in (home / "hosts" / host).iterdir()}


@pytest.fixture
def cli(home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[CommandLine]:
    """A service whose commands are the page's programs. A machine of each scope polls all the time, so these get notice."""
    for name, value in variables(home).items():
        monkeypatch.setenv(name, value)
    (settings,) = re.findall(r"^```toml\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
    # The usual hour for an order lasts 1.2 s here.
    text = 'order_timeout = "30d"\n' + settings.replace("/usr/local/bin", f"{home}/bin")
    (home / "serve.toml").write_text(text)
    with serving(home, "--clock", "3000x", "--config", str(home / "serve.toml"), fleet=FLEET) as made:
        polled, ended = Event(), Event()

        def poll() -> None:
            # A day without a poll, after which a scope gets no notice, lasts 29 s here.
            while not ended.wait(POLL_EVERY_S if polled.is_set() else 0):
                for address in ("127.0.1.1", "127.0.2.1"):
                    made.poll(address)
                polled.set()

        guests = Thread(target=poll)
        guests.start()
        assert polled.wait(PATIENCE_S)
        yield made
        ended.set()
        guests.join(PATIENCE_S)


FLEET = "".join(
    f'[[scopes]]\nname = "{scope}"\nkind = "availability-set"\n'
    + "".join(
        f'[[machines]]\nname = "{name}-{number}"\nscope = "{scope}"\nupdate_domain = {number}\nhost = "rack{number}"\n'
        f'addresses = ["127.0.{net}.{number + 1}"]\n'
        for number in range(2)
    )
    for net, (scope, name) in enumerate([("shop", "web"), ("db", "db")], 1)
)


def run(cli: CommandLine, script: str) -> "subprocess.CompletedProcess[str]":
    words = ["sh", "-c", script]
    variables = environment(cli.folder)
    return subprocess.run(words, env=variables, capture_output=True, text=True, timeout=WITHIN_S, check=False)


def test_hosts_are_patched_one_after_the_other_with_their_machines_down(cli: CommandLine, home: Path) -> None:
    """Each host is patched once, when none of its machines runs, by one command; all machines run at the end."""
    command = " ".join(printed("--in-place").replace("--host kvm-01", "--host rack0 --host rack1").split())
    done = run(cli, f"{command} --yes")
    assert done.returncode == 0, done.stderr
    assert (home / "patched").read_text() == "rack0:\nrack1:\n"
    assert running(home, "rack0") | running(home, "rack1") == {"shop.web-0", "db.db-0", "shop.web-1", "db.db-1"}
    (maintenance,) = cli.json("maintenance", "list")["items"]
    assert maintenance["status"] == "Completed"
    assert {host["state"] for host in cli.json("host", "list")["items"]} == {"up"}


def test_the_plan_of_an_evacuation_is_shown(cli: CommandLine) -> None:
    """The page's first command shows the hosts in turn and changes nothing."""
    shown = run(cli, printed("--evacuate").replace("kvm-01", "rack0").replace("kvm-02", "rack1"))
    assert shown.returncode == 0, shown.stderr
    assert "Evacuation of 2 hosts by Freeze, one after the other" in shown.stdout
    assert cli.json("maintenance", "list")["items"] == []


def test_a_program_for_machines_refuses_other_work(home: Path) -> None:
    """Without a phase the order is no in-place maintenance, and nothing is touched."""
    order = {"FOREWARN_HOSTS": "rack0", "FOREWARN_SCOPE": "shop", "FOREWARN_RESOURCES": "web-0", "FOREWARN_PHASE": ""}
    done = subprocess.run([home / "bin" / "work-on-machines"], env={**variables(home), **order}, check=False)
    assert done.returncode == 1
    assert running(home, "rack0") == {"shop.web-0", "db.db-0"}
