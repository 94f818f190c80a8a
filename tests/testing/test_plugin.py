"""The pytest plugin in separate pytest runs: the fixture, its options, xdist, and two hundred repetitions."""

import importlib
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.support.budget import BUDGET

ROOT = Path(__file__).parent.parent.parent
REPETITIONS = 200 if BUDGET == 1 else 100 * BUDGET
WITHIN_S = 600 * REPETITIONS // 200

# A small program under test that approves every scheduled event and finds the emulator by the environment.
SERVICE = """
import threading
import pytest
from forewarn.guest import Client
from forewarn.guest.errors import GuestError


class Service(threading.Thread):
    def __init__(self):
        super().__init__(daemon=True)
        self.client = Client()
        self.ready = set()

    def run(self):
        try:
            while True:
                for event in self.client.poll(wait_s=30).events:
                    if event.status == "Scheduled" and event.id not in self.ready:
                        self.ready.add(event.id)
                        self.client.approve(event)
        except GuestError:
            return

    def healthy(self):
        return self.is_alive()


@pytest.fixture
def my_service(scheduled_events):
    service = Service()
    service.start()
    return service
"""

EXAMPLE = """
def test_my_service_survives_a_reboot(scheduled_events, my_service):
    event = scheduled_events.schedule("Reboot", "vm-0")
    scheduled_events.wait_seen(event, by="vm-0")
    scheduled_events.advance(minutes=2)
    scheduled_events.expect_approval(event, within_s=5, times=1)   # wall time
    scheduled_events.finish(event)
    assert my_service.healthy()
"""


def pytest_run(folder: Path, *arguments: str, ini: str = "", **files: str) -> subprocess.CompletedProcess[str]:
    """Run pytest in the folder, with only this plugin and xdist."""
    (folder / "pytest.ini").write_text(f"[pytest]\naddopts = --strict-markers\n{ini}")
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text)
    plugins = ["-p", "forewarn.testing.plugin", "-p", "xdist.plugin", "-p", "no:cacheprovider"]
    paths = [str(ROOT / "src"), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    # With these variables pytest repeats whole messages in its summary, which would change their number.
    environment = {key: value for key, value in os.environ.items() if key not in ("CI", "BUILD_NUMBER")}
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *plugins, *arguments],
        cwd=folder,
        env={**environment, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        timeout=WITHIN_S,
        check=False,
    )


def test_the_entry_point_is_the_plugin() -> None:
    """pytest finds the fixture wherever forewarn is installed."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    name = project["project"]["entry-points"]["pytest11"]["forewarn"]
    assert hasattr(importlib.import_module(name), "scheduled_events")


def test_the_plugin_imports_nothing_until_it_is_used() -> None:
    """pytest loads it in every run, so it imports no other module of forewarn."""
    program = "import sys, forewarn.testing.plugin; print(*sorted(m for m in sys.modules if m.startswith('forewarn')))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=WITHIN_S, check=True)
    assert done.stdout.split() == ["forewarn", "forewarn.testing", "forewarn.testing.plugin"]


@pytest.mark.timeout(WITHIN_S + 10)
def test_two_hundred_repetitions_do_not_flake(tmp_path: Path) -> None:
    """The example of the documentation passes every time with a real client, on two workers."""
    repeated = EXAMPLE.replace("scheduled_events, my", "repetition, scheduled_events, my")
    # What a repetition waits for may take long on a busy machine.
    repeated = repeated.replace('by="vm-0"', 'by="vm-0", within_s=60').replace("within_s=5", "within_s=60")
    text = f"import pytest\n\n@pytest.mark.parametrize('repetition', range({REPETITIONS})){repeated}"
    done = pytest_run(tmp_path, "-n", "2", conftest=SERVICE, test_it=text)
    assert f"{REPETITIONS} passed" in done.stdout, done.stdout[-3_000:]
    assert done.returncode == 0


def test_each_test_has_its_own_emulator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment points to the emulator of the test and is restored afterwards."""
    text = """
import os
from urllib.request import Request, urlopen

seen = []

def poll():
    url = os.environ["FOREWARN_ENDPOINT"] + "/metadata/scheduledevents?api-version=2020-07-01"
    return urlopen(Request(url, headers={"Metadata": "true"})).read()

def test_one(scheduled_events):
    scheduled_events.schedule("Freeze", "vm-0")
    assert b"Freeze" in poll()
    assert len(scheduled_events.requests()) == 1
    assert os.environ["FOREWARN_SERVER"] == scheduled_events.operator_url
    assert "FOREWARN_TOKEN" not in os.environ
    seen.append(scheduled_events.endpoint)

def test_other(scheduled_events):
    assert b"Freeze" not in poll()
    assert len(scheduled_events.requests()) == 1

def test_without():
    assert os.environ["FOREWARN_ENDPOINT"] == "http://10.9.8.7"
"""
    monkeypatch.setenv("FOREWARN_ENDPOINT", "http://10.9.8.7")
    done = pytest_run(tmp_path, test_it=text)
    assert "3 passed" in done.stdout, done.stdout


def test_options_override_each_other(tmp_path: Path) -> None:
    """The marker overrides the command line, and the command line overrides the ini file."""
    text = """
import pytest

def test_ini(scheduled_events):
    assert len(scheduled_events.machine_names()) == 3
    assert scheduled_events.seed == 11
    assert [str(f) for f in scheduled_events.faults] == ["410"]

@pytest.mark.scheduled_events(machines=2, seed=5, faults=[{"fault": "cut"}], disable_after="24h", clock="60x")
def test_marker(scheduled_events):
    assert len(scheduled_events.machine_names()) == 2
    assert scheduled_events.seed == 5
    assert [str(f) for f in scheduled_events.faults] == ["cut"]
    assert scheduled_events.service.settings.disable_after_s == 86_400
    assert scheduled_events.clock.name == "60x"
"""
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "faults.toml").write_text('[[faults]]\nfault = "status"\nstatus = 410\n')
    ini = "scheduled_events_machines = 3\nscheduled_events_faults = sub/faults.toml\n"
    done = pytest_run(tmp_path, "--scheduled-events-seed", "11", ini=ini, test_it=text)
    assert "2 passed" in done.stdout, done.stdout
    (tmp_path / "other.toml").write_text('[[faults]]\nfault = "reset"\n')
    text = text.replace("410", "reset")
    options = ("--scheduled-events-seed", "11", "--scheduled-events-faults", "other.toml")
    done = pytest_run(tmp_path, *options, "-k", "ini", ini=ini, test_it=text)
    assert "1 passed" in done.stdout, done.stdout


def test_wrong_options_are_errors(tmp_path: Path) -> None:
    """The test that uses the fixture gets an error with a message."""
    text = """
import pytest

def test_file(scheduled_events):
    pass

@pytest.mark.scheduled_events(3)
def test_by_position(scheduled_events):
    pass

@pytest.mark.scheduled_events(machines=0, faults=None)
def test_no_machine(scheduled_events):
    pass
"""
    done = pytest_run(tmp_path, "--scheduled-events-faults", "none.toml", test_it=text)
    assert "3 errors" in done.stdout
    for message in (
        "none.toml: cannot be read",
        "arguments by name, like machines=3",
        "machines: 0 is not from 1 to 250",
    ):
        assert message in done.stdout
    done = pytest_run(tmp_path, "-k", "file", ini="scheduled_events_machines = many\n", test_it=text)
    assert "scheduled_events_machines: 'many' is not a number of machines" in done.stdout


def test_failures_show_the_timeline_once(tmp_path: Path) -> None:
    """A failed expectation has it in its message, and a test that fails otherwise has it in a section."""
    text = """
def test_expectation(scheduled_events, my_service):
    event = scheduled_events.schedule("Reboot", "vm-0")
    scheduled_events.wait_seen(event)
    scheduled_events.expect_approval(event, times=1)
    scheduled_events.expect_approval(event, times=2, within_s=0.1)

def test_otherwise(scheduled_events, my_service):
    event = scheduled_events.schedule("Reboot", "vm-0")
    scheduled_events.expect_approval(event)
    assert False, "something else"
"""
    done = pytest_run(tmp_path, "-n", "2", conftest=SERVICE, test_it=text)
    assert "2 failed" in done.stdout, done.stdout
    assert done.stdout.count("scheduled_events ---") == 1
    assert len(re.findall(r"#\d+ vm-0 POST \S+ approving [0-9A-F]{8} -> 200", done.stdout)) == 2, done.stdout
    assert "emulator.py" not in done.stdout, "frames of the emulator are hidden"


def test_the_fixture_needs_the_server_extra(tmp_path: Path) -> None:
    """Without it a test with the fixture fails and says what to install; other tests pass."""
    conftest = "import sys\nsys.modules.update(dict.fromkeys(['httptools', 'msgspec', 'starlette', 'uvicorn']))\n"
    text = "def test_with(scheduled_events):\n    pass\n\ndef test_without():\n    pass\n"
    done = pytest_run(tmp_path, conftest=conftest, test_it=text)
    assert "pip install 'forewarn[server]'" in done.stdout
    assert "1 passed, 1 error" in done.stdout


def test_a_late_second_approval_fails_the_test(tmp_path: Path) -> None:
    """The fixture counts approvals again at the end, but not after a test that has failed already."""
    text = """
from urllib.request import Request, urlopen

def approve(emulator, event):
    url = emulator.endpoint + "/metadata/scheduledevents?api-version=2020-07-01"
    body = b'{"StartRequests": [{"EventId": "%s"}]}' % event.id.encode()
    urlopen(Request(url, body, {"Metadata": "true"})).read()

def approve_twice(emulator):
    event = emulator.schedule("Reboot", "vm-0")
    approve(emulator, event)
    emulator.expect_approval(event, times=1)
    approve(emulator, event)

def test_late_approval(scheduled_events):
    approve_twice(scheduled_events)

def test_failed(scheduled_events):
    approve_twice(scheduled_events)
    assert False, "something else"
"""
    done = pytest_run(tmp_path, test_it=text)
    assert "1 failed, 1 passed, 1 error" in done.stdout, done.stdout
    assert done.stdout.count("by the end it was approved twice") == 1, done.stdout
    assert "emulator.py" not in done.stdout, "frames of the emulator are hidden"


def test_a_failed_callback_fails_the_test(tmp_path: Path) -> None:
    """The test fails, not its end, although it waits for nothing. Another failure also shows the callback's."""
    text = """
import threading
from urllib.error import HTTPError
from urllib.request import Request, urlopen

def approve(emulator):
    event = emulator.schedule("Reboot", "vm-0")
    url = emulator.endpoint + "/metadata/scheduledevents?api-version=2020-07-01"
    body = b'{"StartRequests": [{"EventId": "%s"}]}' % event.id.encode()
    try:
        urlopen(Request(url, body, {"Metadata": "true"})).read()
    except HTTPError as error:
        assert error.code == 500
    return event

def check(request):
    ready = False
    assert ready, "nothing was saved"

def test_waits_for_nothing(scheduled_events):
    scheduled_events.on_approval(check)
    approve(scheduled_events)

def test_waits(scheduled_events):
    scheduled_events.on_approval(check)
    scheduled_events.expect_approval(approve(scheduled_events))

def test_fails_otherwise(scheduled_events):
    scheduled_events.on_approval(check)
    approve(scheduled_events)
    assert False, "something else"

def test_passes(scheduled_events):
    scheduled_events.on_approval(lambda request: None)
    scheduled_events.expect_approval(approve(scheduled_events))
"""
    done = pytest_run(tmp_path, test_it=text)
    assert "3 failed, 1 passed" in done.stdout, done.stdout
    assert "error" not in done.stdout.splitlines()[-1]
    assert done.stdout.count("E       AssertionError: nothing was saved") == 2, done.stdout
    assert done.stdout.count("E       AssertionError: something else") == 1
    assert done.stdout.count("scheduled_events: on_approval ---") == 1
    assert "forewarn/testing/" not in done.stdout, "frames of the emulator are hidden"


def test_a_marker_may_name_a_scenario(tmp_path: Path) -> None:
    """It begins with the first poll, its events have its names, and its steps are in the timeline. An error in it is shown."""
    (tmp_path / "wrong.txt").write_text(
        "fleet\nscope s availability-set\nmachine s/vm-0\n\nenable s\n\nuntil E9 Started\n", "utf-8"
    )
    text = """
import pytest
from forewarn.guest import Client

@pytest.mark.scheduled_events(scenario="user-reboot", machines=2, seed=3)
def test_scenario(scheduled_events):
    assert len(scheduled_events.machine_names()) == 2
    client = Client()
    while not (events := client.poll().events):
        scheduled_events.advance("10s")
    scheduled_events.wait_seen("E1", by="vm-0", within_s=0)
    client.approve(events[0])
    scheduled_events.expect_approval("E1", times=1)
    assert scheduled_events.status("E1") == "Started"
    assert "restart emulated/vm-0" in scheduled_events.timeline()
    scheduled_events.advance("1h")
    assert scheduled_events.scenario.ended.is_set()

@pytest.mark.scheduled_events(scenario="wrong.txt")
def test_wrong_step(scheduled_events):
    Client().poll()
    scheduled_events.advance("1s")

@pytest.mark.scheduled_events(scenario="user-reboot", fleet="fleet.toml")
def test_both(scheduled_events):
    pass

@pytest.mark.scheduled_events(scenario="nowhere")
def test_unknown(scheduled_events):
    pass

@pytest.mark.scheduled_events(machine=3)
def test_argument(scheduled_events):
    pass
"""
    done = pytest_run(tmp_path, test_it=text)
    assert "2 passed, 4 errors" in done.stdout, done.stdout
    for message in (
        "scenario: the scenario defines the machines and the events: leave out fleet",
        "there is no scenario 'nowhere': asleep-for-a-day",
        "scheduled_events: machine: an emulator has no such argument: use machines, fleet, ",
        ", scenario, or one of the settings",
        "wrong.txt: line 7: ",
    ):
        assert message in done.stdout, message
