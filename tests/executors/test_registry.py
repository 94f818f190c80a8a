"""Executors of other packages: found by their entry point, configured by their table, and run by `forewarn serve`."""

import os
import re
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from forewarn.app.service import Service
from forewarn.core.errors import InvalidSettings
from forewarn.core.fleet import Fleet
from forewarn.core.model import Actor, EventType, Machine, MaintenanceRequest, Scope, ScopeKind, Status, Targets
from forewarn.executors import registry
from forewarn.service.settings import load
from forewarn.store import EventQuery
from forewarn.store.sqlite.store import SqliteStore
from tests.support.waiting import PATIENCE_S, until

ROOT = Path(__file__).parents[2]
GUIDE = (ROOT / "docs" / "guide" / "executors.md").read_text("utf-8")


def example(language: str, containing: str) -> str:
    """Return the code block of the guide that contains this text."""
    blocks = re.findall(rf"^```{language}\n(.*?)^```$", GUIDE, re.MULTILINE | re.DOTALL)
    (block,) = [each for each in blocks if containing in each]
    return str(block)


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A folder of installed packages with the guide's executor in it."""
    folder = tmp_path / "site"
    distribution = folder / "notebook-1.0.dist-info"
    distribution.mkdir(parents=True)
    (folder / "notebook.py").write_text(example("python", "class NotebookExecutor"))
    (distribution / "METADATA").write_text("Metadata-Version: 2.1\nName: notebook\nVersion: 1.0\n")
    declared = tomllib.loads(example("toml", "entry-points"))["project"]["entry-points"][registry.GROUP]
    lines = [f"{name} = {value}" for name, value in declared.items()]
    (distribution / "entry_points.txt").write_text("\n".join([f"[{registry.GROUP}]", *lines, ""]))
    return folder


def config(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "serve.toml"
    path.write_text(text)
    return path


def test_an_executor_of_another_package_does_the_work(tmp_path: Path, site: Path) -> None:
    """`forewarn serve` loads it by its name, gives it its settings and its orders, and completes the event."""
    database, notes = tmp_path / "f.db", tmp_path / "orders.txt"
    prepared = Service(load({"store": f"sqlite:{database}", "state_dir": str(tmp_path / "prepared")}, {}))
    shop = Scope(name="shop", kind=ScopeKind.AVAILABILITY_SET)
    fleet = Fleet({"shop": shop}, {("shop", "web-0"): Machine(scope="shop", name="web-0")})
    prepared.control.apply_fleet(fleet, Actor("test"))
    prepared.control.submit(MaintenanceRequest(type=EventType.REBOOT, targets=Targets(scope="shop")), Actor("test"))
    prepared.close()
    settings = example("toml", 'executor = "notebook"').replace("/var/lib/forewarn/orders.txt", str(notes))
    path = config(tmp_path, f'store = "sqlite:{database}"\nstate_dir = "{tmp_path}"\n{settings}')
    listeners = ["--guest", "127.0.0.1:0", "--operator", "127.0.0.1:0"]
    command = [sys.executable, "-m", "forewarn", "serve", "--config", str(path), *listeners]
    environment = {key: value for key, value in os.environ.items() if not key.startswith("FOREWARN_")}
    process = subprocess.Popen(command, env={**environment, "PYTHONPATH": str(site)}, stdout=subprocess.DEVNULL)
    try:
        reader = SqliteStore(database)
        until(lambda: [e.status for e in reader.events(EventQuery()).events] == [Status.COMPLETED])
        reader.close()
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=PATIENCE_S) == 0
    finally:
        process.kill()
        process.wait()
    assert notes.read_text() == "Reboot web-0\n"


def test_the_table_of_an_executor_is_checked(tmp_path: Path, site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A wrong or unknown setting in it is refused with its origin."""
    monkeypatch.syspath_prepend(site)
    assert registry.names() == [*registry.BUILT_IN, "notebook"]
    with pytest.raises(InvalidSettings, match=r"serve\.toml: \[notebook\] file: write a text"):
        load({}, {}, config(tmp_path, "[notebook]\nfile = 1\n"))
    with pytest.raises(InvalidSettings, match=r"\[notebook\] colour: unknown setting; the settings are file$"):
        load({}, {}, config(tmp_path, "[notebook]\ncolour = 1\n"))
    with pytest.raises(InvalidSettings, match="token_free: not with the notebook executor"):
        load({"executor": "notebook", "token_free": True}, {})


def test_a_built_in_executor_is_configured_by_table_or_by_flat_names(tmp_path: Path) -> None:
    """Both mean the same; a variable wins over both."""
    table = load({}, {}, config(tmp_path, '[command]\ncommand = ["/bin/true"]\ntime_limit = "5m"\n'))
    flat = load({}, {}, config(tmp_path, 'command = ["/bin/true"]\ncommand_time_limit = "5m"\n'))
    assert table == flat
    override = {"FOREWARN_COMMAND_TIME_LIMIT": "6m"}
    settings = load({}, override, config(tmp_path, '[command]\ntime_limit = "5m"\n'))
    assert settings.executor_settings["command"].time_limit_s == 360


@pytest.mark.parametrize(
    ("module", "value", "error"),
    [
        ("import nothing_of_this_name", "broken:Broken", "cannot be loaded from broken:Broken: No module named"),
        ("Broken = 1", "broken:Broken", "is no subclass of Executor with the name 'broken'"),
        ("from forewarn.executors import Executor as Broken", "broken:Broken", "with the name 'broken'"),
    ],
)
def test_an_executor_that_cannot_be_used_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: str, value: str, error: str
) -> None:
    """The error names the executor and the reason."""
    (tmp_path / "broken.py").write_text(module)
    distribution = tmp_path / "broken-1.0.dist-info"
    distribution.mkdir()
    (distribution / "METADATA").write_text("Metadata-Version: 2.1\nName: broken\nVersion: 1.0\n")
    (distribution / "entry_points.txt").write_text(f"[{registry.GROUP}]\nbroken = {value}\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "broken", raising=False)
    with pytest.raises(InvalidSettings, match=re.escape(error)):
        load({"executor": "broken"}, {})
    monkeypatch.delitem(sys.modules, "broken", raising=False)


def test_the_built_in_executors_are_declared_as_entry_points() -> None:
    """pyproject.toml and the registry agree; each class has the name under which it is found."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert project["entry-points"][registry.GROUP] == registry.BUILT_IN
    assert [registry.find(name).name for name in registry.BUILT_IN] == list(registry.BUILT_IN)
