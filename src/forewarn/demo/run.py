"""The demo as a whole: a service on a temporary SQLite file, its guests and its director, until a signal; then nothing is left.

Everything lies in one temporary folder and every helper hangs on its lifeline: even after SIGKILL the helpers end and one of
them removes the folder.
"""

import logging
import os
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from forewarn.app.server import StopSignal, running, tune_process
from forewarn.app.service import Service
from forewarn.core.errors import InvalidSettings
from forewarn.demo.director import Director
from forewarn.demo.guests import answering, has_agent, helper
from forewarn.demo.lifeline import hold, remove
from forewarn.demo.messages import welcome
from forewarn.service.settings import Settings, load

DEFAULT_PORT = 8169
MAX_PORT = 65_534
MIN_RATE, MAX_RATE = 1.0, 600.0
HOST = "127.0.0.1"
FLEET = Path(__file__).parent / "fleet.toml"
BEGIN_WITHIN_S = 15.0
REMOVE_WITHIN_S = 3.0
# A day of the service's time: at sixty times the speed 24 minutes' worth of history.
RETAIN_HISTORY = "24h"

log = logging.getLogger("forewarn.demo")


def run(*, port: int, speed: str, program: str, say: Callable[[str], None]) -> None:
    """Until SIGTERM or SIGINT. `program` is how the command line is called in what is said."""
    stopping = StopSignal(signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    rate = rate_of(speed)
    refuse_taken(port)
    with _folder() as (folder, lifeline):
        service = Service(settings_of(port, rate, folder), node="the demo")
        try:
            director = Director(service.control, service.store)
            service.ticker.add_chore(director)
            service.apply_fleet_file(FLEET)
            machines = [machine for machine in service.store.inventory().machines.values() if has_agent(machine)]
            with running(service) as (guests, operator):
                (guest,) = guests.listener.urls
                with answering(machines, guest, folder=folder, lifeline=lifeline, rate=rate):
                    tune_process()
                    _wait_until(director.begun, stopping)
                    say(f"ready guest={guest} operator={operator}")
                    say(welcome(guest=guest, operator=operator, rate=rate, program=program))
                    stopping.wait()
        finally:
            service.close()


def rate_of(speed: str) -> float:
    try:
        rate = float(speed.removesuffix("x"))
    except ValueError:
        rate = 0.0
    if not MIN_RATE <= rate <= MAX_RATE:
        raise InvalidSettings(f"--speed: {speed!r} is no rate: write one from {MIN_RATE:g}x to {MAX_RATE:g}x, like 60x")
    return rate


def settings_of(port: int, rate: float, folder: Path) -> Settings:
    """Neither variables nor files have a say: every demo is the same."""
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


def refuse_taken(port: int) -> None:
    """Both ports are free, or InvalidSettings says which is not and how to choose others."""
    for each in (port, port + 1) if port else ():
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((HOST, each))
            except OSError as error:
                raise InvalidSettings(
                    f"--port: {HOST}:{each} cannot be had: {error.strerror}. Is another demo or service running? Choose two"
                    " ports in a row with `forewarn demo --port 9000` or `make run PORT=9000`"
                ) from None


def _wait_until(begun: threading.Event, stopping: StopSignal) -> None:
    """The guests have asked and something is announced: from the first look on there is something to see."""
    deadline_s = time.monotonic() + BEGIN_WITHIN_S
    while not begun.wait(0.05) and not stopping.is_set():
        if time.monotonic() > deadline_s:
            log.warning("some guests have not asked within %g s: what they would show comes later", BEGIN_WITHIN_S)
            return


@contextmanager
def _folder() -> Iterator[tuple[Path, Path]]:
    """A temporary folder and the lifeline in it; gone afterwards, however this process ends."""
    folder = Path(tempfile.mkdtemp(prefix="forewarn-demo-"))
    lifeline = folder / "lifeline"
    held = hold(lifeline)
    keeper = helper("forewarn.demo.lifeline", str(lifeline), "remove", str(folder), log=folder / "log")
    try:
        yield folder, lifeline
    finally:
        os.close(held)
        try:
            keeper.wait(REMOVE_WITHIN_S)
        except subprocess.TimeoutExpired:
            keeper.kill()
            keeper.wait()
            remove(folder)
