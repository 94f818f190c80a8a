"""Runs the demo until a signal: a service with a temporary SQLite file, its agents, and the schedule of its maintenance.

All files are in one temporary folder, and all helper processes watch the lifeline. So even after SIGKILL the helpers end, and one
of them removes the folder.
"""

import logging
import os
import shutil
import signal
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from forewarn.app.server import StopSignal, running, tune_process
from forewarn.app.service import Service
from forewarn.core.errors import InvalidSettings
from forewarn.demo.agents import DemoFolder, has_agent, running_agents, start_helper
from forewarn.demo.lifeline import create_lifeline
from forewarn.demo.messages import welcome
from forewarn.demo.schedule import DemoSchedule
from forewarn.service.settings import Settings, load

DEFAULT_PORT = 8169
MAX_PORT = 65_534
MIN_RATE, MAX_RATE = 1.0, 600.0
HOST = "127.0.0.1"
FLEET = Path(__file__).parent / "fleet.toml"
FIRST_EVENTS_WITHIN_S = 15.0
# On the service clock; at 60x these are 24 real minutes.
RETAIN_HISTORY = "24h"

log = logging.getLogger("forewarn.demo")


def run(*, port: int, speed: str, program: str, say: Callable[[str], None]) -> None:
    """Run the demo until SIGTERM or SIGINT. `program` is the command line's name in the printed commands."""
    stopping = StopSignal(signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    rate = parse_rate(speed)
    check_ports_free(port)
    with _temporary_folder() as folder:
        service = Service(demo_settings(port, rate, folder.path), node="the demo")
        try:
            schedule = DemoSchedule(service.control, service.store)
            service.ticker.call_periodically(schedule)
            service.apply_fleet_file(FLEET)
            machines = [machine for machine in service.store.inventory().machines.values() if has_agent(machine)]
            with running(service) as (guest_server, operator):
                (guest,) = guest_server.listener.urls
                with running_agents(machines, guest, folder=folder, rate=rate):
                    tune_process()
                    _wait_for_first_events(schedule.begun, stopping.is_set, FIRST_EVENTS_WITHIN_S)
                    say(f"ready guest={guest} operator={operator}")
                    say(welcome(guest=guest, operator=operator, rate=rate, program=program))
                    stopping.wait()
        finally:
            service.close()


def parse_rate(speed: str) -> float:
    """Parse a rate such as `60x` or `60`; raise InvalidSettings if it is not in range."""
    try:
        rate = float(speed.removesuffix("x"))
    except ValueError:
        rate = 0.0
    if not MIN_RATE <= rate <= MAX_RATE:
        raise InvalidSettings(
            f"--speed: {speed!r} is not a rate: write one from {MIN_RATE:g}x to {MAX_RATE:g}x, like 60x"
        )
    return rate


def demo_settings(port: int, rate: float, folder: Path) -> Settings:
    """Return the settings of the demo. Environment variables and files do not change them."""
    return load(
        {
            "state_dir": str(folder),
            "clock": f"{rate:g}x",
            "executor": "simulated",
            "simulated_work": "8m",
            "simulated_freeze_work": "4m",
            "guest": f"{HOST}:{port}",
            "operator": f"{HOST}:{port + 1 if port else 0}",
            "token_free": True,
            "demo": True,
            "retain_history": RETAIN_HISTORY,
        },
        {},
    )


def check_ports_free(port: int) -> None:
    """Raise InvalidSettings if one of both ports is in use, with how to choose others."""
    for each in (port, port + 1) if port else ():
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((HOST, each))
            except OSError as error:
                raise InvalidSettings(
                    f"--port: {HOST}:{each} is not available: {error.strerror}. Is another demo or service running? Choose two"
                    " consecutive ports with `forewarn demo --port 9000` or `make run PORT=9000`"
                ) from None


def _wait_for_first_events(begun: threading.Event, stopped: Callable[[], bool], within_s: float) -> None:
    """Wait until every scope has its first maintenance, so that the first page is not empty."""
    deadline_s = time.monotonic() + within_s
    while not begun.wait(0.05) and not stopped():
        if time.monotonic() > deadline_s:
            log.warning("some agents have not polled within %g s: their scopes get maintenance later", within_s)
            return


@contextmanager
def _temporary_folder() -> Iterator[DemoFolder]:
    """Create a folder with a lifeline in it. A helper removes it afterwards, however this process ends."""
    folder = Path(tempfile.mkdtemp(prefix="forewarn-demo-"))
    lifeline = folder / "lifeline"
    descriptor = create_lifeline(lifeline)
    reading, in_use = os.pipe()
    arguments = ("remove", str(reading), str(folder))
    remover = start_helper("forewarn.demo.lifeline", *arguments, log=folder / "log", inherited=reading)
    os.close(reading)
    try:
        yield DemoFolder(folder, lifeline, in_use)
    finally:
        os.close(descriptor)
        os.close(in_use)
        remover.wait()
        shutil.rmtree(folder, ignore_errors=True)  # if another process ended the helper
