"""What /metrics shows is documented, and what alerts and dashboard ask for is shown: by nodes that run, on both stores."""

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
import yaml  # type: ignore[import-untyped]
from prometheus_client.parser import text_string_to_metric_families

from forewarn.service.follower import UNREADY_AFTER_S
from tests.integration.nodes.nodes import Node, some_nodes, wire_to
from tests.support.postgres_servers import SHARED
from tests.support.waiting import PATIENCE_S, until

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs/reference/metrics.md").read_text("utf-8")
RULES: list[dict[str, Any]] = yaml.safe_load((ROOT / "packaging/forewarn-alerts.yml").read_text())["groups"][0]["rules"]
DASHBOARD: dict[str, Any] = json.loads((ROOT / "packaging/grafana-dashboard.json").read_text())
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
# What Prometheus itself adds to whatever it scrapes.
ADDED = {"job", "instance"}
FUNCTIONS = {"absent", "avg_over_time", "count", "delta", "increase", "max", "min", "rate", "sum"}
WORDS = {"by", "ignoring"}
LABELLED = re.compile(r"(\w+)(?:=~|!=|=)\"([^\"]*)\"")

# Each sample's name, and what is known of each of its labels.
Shown = dict[str, dict[str, set[str]]]


def shown(node: Node) -> Shown:
    """What a node shows whose database has just answered."""
    answered: list[list[tuple[str, dict[str, str], float]]] = []

    def answers() -> bool:
        answered.append(samples(node))
        return any(name == "forewarn_budget_limit" for name, *_ in answered[-1])

    until(answers)
    found: Shown = {}
    for name, labels, _ in answered[-1]:
        known = found.setdefault(name, {})
        for label, value in labels.items():
            known.setdefault(label, set()).add(value)
    return found


def samples(node: Node) -> list[tuple[str, dict[str, str], float]]:
    with urlopen(f"{node.operator}/metrics", timeout=PATIENCE_S) as answer:
        assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
        text = answer.read().decode()
    return [(s.name, s.labels, s.value) for family in text_string_to_metric_families(text) for s in family.samples]


def value(node: Node, name: str, **labels: str) -> float | None:
    found = [v for n, known, v in samples(node) if n == name and labels.items() <= known.items()]
    assert len(found) <= 1
    return found[0] if found else None


def until_shows(node: Node, expected: Mapping[str, float], absent: tuple[str, ...] = ()) -> None:
    """Wait for one answer that has all of these values, each named as Prometheus writes it, and none of those."""
    values: dict[str, float] = {}

    def shows() -> bool:
        values.clear()
        for name, labels, each in samples(node):
            inside = ",".join(f'{label}="{text}"' for label, text in sorted(labels.items()))
            values[f"{name}{{{inside}}}" if inside else name] = each
        return values.items() >= expected.items() and not values.keys() & set(absent)

    until(shows, detail=lambda: {name: values.get(name) for name in (*expected, *absent)})


def lived(node: Node) -> Node:
    """It has been asked for a document, ticked, and answered an operator, who set budgets."""
    assert node.document().status == 200
    node.change("/v1/budget", {"max_machines_down": 10, "max_hosts_down": 10})
    node.reboot()
    until(lambda: node.ready()[0] == 200)
    until(lambda: value(node, "forewarn_ticker_leads") == 1)
    return node


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with some_nodes(tmp_path_factory.mktemp("shared")) as nodes:
        yield lived(nodes.start(SHARED.fresh()))


@pytest.fixture(scope="module")
def embedded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    folder = tmp_path_factory.mktemp("embedded")
    with some_nodes(folder) as nodes:
        yield lived(nodes.start(f"sqlite:{folder / 'forewarn.db'}"))


def documented(heading: str = "") -> dict[str, set[str]]:
    """The names in the tables, or in the one under a heading, with their labels."""
    text = PAGE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0] if heading else PAGE
    rows = re.findall(r"^\| `(\w+_\w+)(?:\{([\w,]+)\})?` \|", text, re.MULTILINE)
    return {name: set(labels.split(",")) - {""} for name, labels in rows}


def test_every_metric_is_documented_and_shown(shared: Node, embedded: Node) -> None:
    """The tables have what the nodes show, with the same labels; only what is said to be is shown on one store alone."""
    of_several = documented("The database of several nodes")
    assert len(of_several) == 6
    assert {name: set(labels) for name, labels in shown(shared).items()} == documented()
    alone = {name: labels for name, labels in documented().items() if name not in of_several}
    assert {name: set(labels) for name, labels in shown(embedded).items()} == alone


def test_every_value_a_label_has_is_documented(shared: Node) -> None:
    """Those that are words; a status is a number, and a version."""
    for name, labels in shown(shared).items():
        (row,) = [line for line in PAGE.splitlines() if re.match(rf"\| `{name}[`{{]", line)]
        for label, values in labels.items():
            if name == "forewarn_info" or (label, name[-6:]) == ("status", "_total"):
                continue
            assert all(f"`{each}`" in row for each in values), f"{name}: {label}"


def selectors(expression: str) -> Iterator[tuple[str, str]]:
    """The metrics an expression names, each with its braces' content."""
    for name, inside in re.findall(r"([a-z]\w*_\w+|\bup\b)(?:\{([^}]*)\})?", re.sub(r"by \([^)]*\)", "", expression)):
        if name not in FUNCTIONS:
            yield name, inside


def check(expression: str, known: Shown) -> None:
    """Every name is shown, with these labels and, where they are words, these values; and it looks like an expression."""
    plain = re.sub(r"\"[^\"]*\"", '""', expression)
    assert all(plain.count(a) == plain.count(b) for a, b in ("()", "[]", "{}")), expression
    named = list(selectors(expression))
    assert named, expression
    for name, inside in named:
        if name == "up":
            continue
        assert name in known, f"{name} is shown by no node: {expression}"
        for label, value in LABELLED.findall(inside):
            assert label in known[name].keys() | ADDED, f"{name} has no label {label}: {expression}"
            if label not in ADDED | {"status"}:
                assert value in known[name][label], f"{name} has no {label} {value}: {expression}"
    grouped = {word.strip() for group in re.findall(r"by \(([^)]*)\)", expression) for word in group.split(",")}
    labels = set().union(*(known[name].keys() for name, _ in named if name != "up"))
    assert grouped <= labels | ADDED, expression
    assert set(re.findall(r"\b([a-z_]+)\s*\(", plain)) <= FUNCTIONS | WORDS, expression
    counters = re.findall(r"(\w+)\((\w+_total)", expression)
    assert all(function in ("rate", "increase") for function, _ in counters), f"a counter only grows: {expression}"


def test_alerts_ask_for_what_is_shown(shared: Node) -> None:
    """Names, labels and values; each with a severity, and a summary that uses no label the alert has not."""
    known = shown(shared)
    for rule in RULES:
        check(rule["expr"], known)
        assert rule["labels"]["severity"] in ("critical", "warning", "info")
        assert re.fullmatch(r"\d+[smh]", rule.get("for", "1m"))
        assert set(rule) <= {"alert", "expr", "for", "labels", "annotations"}
        left = set(re.findall(r"by \(([^)]*)\)", rule["expr"])[0].split(", ")) if " by (" in rule["expr"] else None
        for label in re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"]):
            names = {name for name, _ in selectors(rule["expr"])}
            has = left if left is not None else ADDED.union(*(known.get(name, {}).keys() for name in names))
            assert label in has, f"{rule['alert']}: {label}"


def test_alerts_are_documented() -> None:
    """Each has its row, in the order of the file, and no row is of another."""
    alerts = re.findall(r"^\| `(Forewarn\w+)` \|", PAGE, re.MULTILINE)
    assert sorted(alerts) == sorted(rule["alert"] for rule in RULES)
    assert len(set(alerts)) == len(alerts)


def test_every_alert_leads_to_its_section_of_the_runbook() -> None:
    """`runbook_url` has the anchor of a heading that is the alert's name; each section has text, and an alert."""
    sections = re.split(r"^## ", (ROOT / "docs/guide/runbook.md").read_text("utf-8"), flags=re.MULTILINE)[1:]
    headings = {heading: text for heading, _, text in (section.partition("\n") for section in sections)}
    assert list(headings) == [rule["alert"] for rule in RULES]
    for rule in RULES:
        address = f"https://forewarn.example/docs/guide/runbook.md#{rule['alert'].lower()}"
        assert rule["annotations"]["runbook_url"] == address
        assert len(headings[rule["alert"]].split()) > 10


def test_the_dashboard_asks_for_what_is_shown(shared: Node) -> None:
    """Names, labels and values, in every panel; and everything we show but what tells nothing over time is on it."""
    known = shown(shared)
    expressions = [target["expr"] for panel in PANELS for target in panel["targets"]]
    expressions += [each["expr"] for each in DASHBOARD["annotations"]["list"]]
    for expression in expressions:
        check(expression.replace("$__rate_interval", "5m"), known)
    named = {name for expression in expressions for name, _ in selectors(expression)}
    assert set(known) - named == {"process_virtual_memory_bytes", "process_start_time_seconds"}


def test_the_dashboard_is_one() -> None:
    """Every panel has an id of its own, a place that no other has, words, and the source that the reader chooses."""
    panels = DASHBOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    places: set[tuple[int, int]] = set()
    for panel in panels:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & places
        assert at["x"] + at["w"] <= 24
        places |= cells
    for panel in PANELS:
        assert panel["title"]
        assert panel["description"]
        assert {target["datasource"]["uid"] for target in panel["targets"]} == {"${datasource}"}
    assert [each["name"] for each in DASHBOARD["templating"]["list"]] == ["datasource", "job"]


# -- what they say


def test_one_node_ticks_and_all_know_the_same(tmp_path: Path) -> None:
    """Of two nodes one leads; both tell of the same events, orders and machines."""
    with some_nodes(tmp_path) as nodes:
        address = SHARED.fresh()
        both = [nodes.start(address), nodes.start(address)]
        until(lambda: sum(value(node, "forewarn_ticker_leads") or 0 for node in both) == 1)
        assert both[0].document().status == 200
        both[1].reboot()
        (event,) = both[1].document().events
        waits = {'forewarn_events{status="Scheduled"}': 1, "forewarn_machines": 2, "forewarn_overdue_start_seconds": 0}
        for node in both:
            until_shows(node, waits)
        assert both[0].approved(event["EventId"]).status == 200
        started = {'forewarn_orders{state="open"}': 1, 'forewarn_events{status="Started"}': 1}
        well = {"forewarn_clock_held": 0, "forewarn_store_synchronous": 0, "forewarn_store_timeline": 1}
        for node in both:
            until_shows(node, {**started, **well})


def test_a_database_that_is_away_shows(tmp_path: Path) -> None:
    """What a node knows grows old, it is not ready and says so; what only the database knows is left out until it is back."""
    with some_nodes(tmp_path) as nodes, wire_to(SHARED.server.port) as wire:
        node = nodes.start(SHARED.fresh().replace(f":{SHARED.server.port}/", f":{wire.port}/"))
        well = {'forewarn_ready{check="store"}': 1, "forewarn_store_away": 0, 'forewarn_events{status="Started"}': 0}
        until_shows(node, {**well, "forewarn_clock_held": 0})
        assert value(node, "forewarn_store_connections", state="idle") is not None
        wire.cut()
        until(lambda: (value(node, "forewarn_store_silent_seconds") or 0) > UNREADY_AFTER_S)
        # It is tried again now and then, and counts as away from then on.
        away = {'forewarn_ready{check="store"}': 0, "forewarn_store_away": 1}
        until_shows(node, away, absent=('forewarn_events{status="Started"}', "forewarn_clock_held"))
        wire.mend()
        until_shows(node, {**well, "forewarn_clock_held": 0})


def test_answers_to_operators_are_counted(embedded: Node) -> None:
    """By kind of request and by status; streams are counted apart."""

    def counted(kind: str, status: str) -> float:
        return value(embedded, "forewarn_operator_requests_total", kind=kind, status=status) or 0

    good, missing, watched = counted("api", "200"), counted("api", "404"), counted("watching", "200")
    assert embedded.api("GET", "/v1/scopes")[0] == 200
    assert embedded.api("GET", "/v1/scopes/none")[0] == 404
    assert (counted("api", "200"), counted("api", "404")) == (good + 1, missing + 1)
    assert counted("watching", "200") > watched
