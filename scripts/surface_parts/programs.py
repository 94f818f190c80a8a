"""What a checkout's programs and Python names look like: commands, options, settings, configuration keys, fixtures."""

import ast
import re
from pathlib import Path
from typing import Any

from scripts.surface_parts.checkout import Checkout, Program

# Stops a console script just before it reads its command line, and takes the parser it would have used.
_CAUGHT = """
import importlib.metadata, json, sys
class Caught(BaseException):
    pass
def caught(self, *_, **__):
    raise Caught(self)
def parser_of(name):
    sys.argv = [name]
    (script,) = [e for e in importlib.metadata.entry_points(group="console_scripts") if e.name == name]
    try:
        script.load()()
    except Caught as found:
        return found.args[0]
def plain(value):
    value = value() if callable(value) and not isinstance(value, type) else value
    value = list(value) if isinstance(value, (list, tuple, set, frozenset)) else value
    return value if isinstance(value, (bool, int, float, list, type(None))) else str(getattr(value, "value", value))
"""
FOREWARN_COMMANDS = (
    _CAUGHT
    + """
import typer
typer.Typer.__call__ = caught
def kind(p):
    facts = {"kind": p.type.name}
    for name in ("choices", "min", "max", "exists", "dir_okay"):
        if getattr(p.type, name, None) not in (None, False):
            facts[name] = plain(getattr(p.type, name))
    return facts
def described(command, words, found):
    options, arguments = {}, 0
    for p in command.params:
        facts = {**kind(p), "required": p.required, "default": plain(p.default), "variable": p.envvar or "", "nargs": p.nargs,
                 "flag": bool(getattr(p, "is_flag", False)), "repeated": bool(getattr(p, "multiple", False))}
        if p.param_type_name == "argument":
            arguments += 1
            options[f"argument {arguments}"] = facts
        else:
            for each in (*p.opts, *p.secondary_opts):
                options[each] = facts
    found[" ".join(words)] = {"hidden": command.hidden, "options": options}
    for name, child in getattr(command, "commands", {}).items():
        described(child, [*words, name], found)
    return found
print(json.dumps(described(typer.main.get_command(parser_of("forewarn")), ["forewarn"], {})))
"""
)
AGENT_COMMANDS = (
    _CAUGHT
    + """
import argparse
argparse.ArgumentParser.parse_args = caught
def described(parser, words, found):
    options, arguments = {}, 0
    children = {}
    for a in parser._actions:
        if isinstance(a, argparse._SubParsersAction):
            children = a.choices
            continue
        facts = {"default": plain(a.default), "nargs": plain(a.nargs), "required": a.required, "choices": plain(a.choices)}
        arguments += not a.option_strings
        for each in a.option_strings or [f"argument {arguments}"]:
            options[each] = facts
    found[" ".join(words)] = {"options": options}
    for name, child in children.items():
        described(child, [*words, name], found)
    return found
print(json.dumps(described(parser_of("forewarn-agent"), ["forewarn-agent"], {})))
"""
)
_NAMES = """
import inspect, json
def parameters(thing):
    try:
        found = inspect.signature(thing).parameters.values()
    except (TypeError, ValueError):
        return None
    return ", ".join(f"{p.kind.description} {p.name}{default(p)}" for p in found)
def default(p):
    shown = "(text)" if isinstance(p.default, str) and " " in p.default else p.default
    return "" if p.default is p.empty else f" = {shown!r}"
def members(thing):
    names = [name for name in dir(thing) if not name.startswith("_")]
    return {name: member(inspect.getattr_static(thing, name, None)) for name in names}
def member(found):
    found = getattr(found, "__func__", found)
    return {"takes": parameters(found)} if callable(found) else "attribute"
"""
GUEST_NAMES = (
    _NAMES
    + """
import forewarn.guest as guest
print(json.dumps({
    name: {"takes": parameters(getattr(guest, name)), "members": members(getattr(guest, name)),
           "bases": [base.__name__ for base in getattr(guest, name).__mro__[1:-1]]}
    for name in sorted(guest.__all__)
}))
"""
)
PLUGIN_TEST = (
    _NAMES
    + """
import importlib.metadata
def test_describe(scheduled_events, request):
    config = request.config
    (plugin,) = [e.load() for e in importlib.metadata.entry_points(group="pytest11") if e.name == "forewarn"]
    fixtures = [name for name, each in vars(plugin).items() if type(each).__name__ == "FixtureFunctionDefinition"]
    markers = [line.partition(":")[0] for line in config.getini("markers")]
    found = {
        "fixtures": sorted(fixtures),
        "markers": {name.partition("(")[0]: name for name in markers if name.startswith("scheduled_events")},
        "options": {name: value for name, value in vars(config.option).items() if name.startswith("scheduled_events")},
        "ini": {n: config.getini(n) for n in ("scheduled_events_machines", "scheduled_events_faults")},
        "environment": sorted(scheduled_events.environment),
        "emulator": {"takes": parameters(type(scheduled_events)), "members": members(type(scheduled_events))},
    }
    with open("found.json", "w") as file:
        json.dump(found, file, default=repr)
"""
)
ENTRY_POINTS = """
import importlib.metadata, json
found = {}
for each in importlib.metadata.distribution("forewarn").entry_points:
    found.setdefault(each.group, {})[each.name] = "entry point"
print(json.dumps(found))
"""
# What no fixed list of requests can bring about: each is looked for as a text in the source, wherever it stands.
RARE_WORDS = {
    "error codes": (
        "bad_request", "invalid", "invalid_fleet", "invalid_settings", "unauthorized", "forbidden", "method_not_allowed",
        "request_timeout", "too_many_attempts", "unprocessable", "too_large", "not_found", "refused", "illegal_transition",
        "machine_busy", "idempotency_key_reused", "store_held", "store_in_use", "too_many_user_operations", "service_error",
        "conflict", "store_unavailable", "too_many_streams", "invariant_broken",
    ),
    "waiting codes": (
        "approval", "bake", "budget", "clock", "continue", "drill", "failures", "earlier-host", "earlier-wave", "earliest",
        "executor", "host-not-empty", "host-work",
        "in-doubt", "machine", "no-go", "no-target", "notice", "order-failed", "paused",
        "queue", "requested-start", "store-held", "ticker", "unresolved", "update-domain", "wave", "window",
    ),
    "journal records": (
        "approved", "approving", "begin", "changed", "child", "end", "health", "in-service", "kept", "lapsed", "over", "refused",
        "seen", "skip", "start", "started", "still", "telling", "told",
    ),
    "environment variables": (
        "FOREWARN_TOKEN", "FOREWARN_SERVER", "FOREWARN_CA_FILE", "FOREWARN_CONFIG", "FOREWARN_ENDPOINT", "SCHEDULEDEVENTSIP",
        "FOREWARN_AGENT_CONFIG", "FOREWARN_CHECKPOINT", "STATE_DIRECTORY", "XDG_STATE_HOME",
    ),
}  # fmt: skip
# For each setting, which of these it takes says what kind of setting it is.
PROBES = (
    "", "abc", "0", "1", "7", "2000", "-1", "90s", "99999999999", "true", "127.0.0.1", "127.0.0.1:1", "0.0.0.0:1@lo",
    "shop/web-0", "shop/web-0=1", "postgresql://x@127.0.0.1:1/x", "sqlite:none.db", "simulated", "guest", "warning",
)  # fmt: skip
_SETTING = re.compile(r"^## (\w+)\n\n(.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)

# The keys of agent.toml by table: what a table cannot do without, and every key with a value it takes.
AGENT_KEYS: dict[str, tuple[dict[str, str], dict[str, str]]] = {
    "": (
        {},
        {
            "approve": '"never"', "reserve": '"30s"', "prepare_within": '"20m"',
            "rules": "[]", "steps": "[]", "health": '{command = ["true"]}',
            "endpoint": '"http://127.0.0.1:1"', "api_version": '"2020-07-01"', "name": '"web-0"', "poll": '"1s"',
            "source_address": '"127.0.0.1"', "state_dir": '"s"', "metrics_file": '"m"', "boot_id_file": '"b"',
            "log_level": '"debug"', "serve": "{client = []}",
        },
    ),
    "[[rules]]": ({"do": '"ignore"'}, {"do": '"prepare-only"', "when": "{}"}),
    "[rules.when]": ({}, {"type": '["Freeze"]', "source": '["User"]', "max_duration": '"9s"'}),
    "[[steps]]": (
        {"name": '"s"', "command": '{prepare = ["true"], recover = ["true"]}'},
        {"when": "{}", "timeout": '"1m"', "required": "true", "repeatable": "false", "finish": "true"},
    ),
    "[health]": ({"command": '["true"]'}, {"timeout": '"1m"'}),
    "[[serve.client]]": (
        {"name": '"c"', "socket": '"/run/c.sock"'},
        {"mode": '"660"', "approves": "true", "client_timeout": '"5m"'},
    ),
    "command": ({"prepare": '["true"]', "recover": '["true"]'}, {"verify": '["true"]'}),
    "process": (
        {"pid_file": '"p"', "start": '["true"]'},
        {"signal": '"TERM"', "kill_after": '"20s"', "foreground": "true", "up_for": '"1s"', "match": '"x"'},
    ),
    "systemd": ({}, {"unit": '"a.service"', "units": '["a.service"]', "user": "true"}),
    "windows_service": ({}, {"service": '"A"', "services": '["A"]'}),
    "haproxy": ({"proxies": '["/run/h"]', "servers": '["b/s"]'}, {"drain_for": '"1s"', "keep": "1"}),
    "nginx": (
        {"file": '"/f"', "servers": '["127.0.0.1:1"]'},
        {"pid_file": '"/p"', "test": '["true"]', "reload": '["true"]', "drain_for": '"1s"', "keep": "1"},
    ),
    "http": (
        {"prepare": '{method = "PUT", url = "http://h/"}', "verify": '{url = "http://h/"}',
         "recover": '{method = "PUT", url = "http://h/", body = "b"}'},
        {"recovered": '{url = "http://h/", status = 404, contains = "x"}', "headers_file": '"/h"',
         "verify": '{url = "http://h/", pointer = "/a", equals = 1}'},
    ),
    "patroni": (
        {"url": '"http://127.0.0.1:1"', "member": '"a"'},
        {"candidate": '"b"', "max_lag": "1", "login_file": '"/l"', "ca_file": '"/c"'},
    ),
    "redis": (
        {"address": '"127.0.0.1:1"'},
        {"replica": '"127.0.0.1:2"', "password_file": '"/p"'},
    ),
    "redis with sentinels": (
        {"address": '"127.0.0.1:1"', "sentinels": '["127.0.0.1:3"]', "master": '"m"', "password_file": '"/p"'},
        {"user": '"u"', "sentinel_password_file": '"/s"'},
    ),
    "checkpoint": ({"file": '"/f"', "command": '["true"]'}, {"restore": '["true"]', "stable_for": '"1s"', "match": '"x"'}),
    "checkpoint by signal": ({"file": '"/f"', "signal": '"USR1"', "pid_file": '"/p"'}, {"match": '"x"'}),
    "log": ({}, {"file": '"/f"', "syslog": '"daemon"'}),
    "notify": ({"url_file": '"/u"'}, {"shape": '"slack"'}),
}  # fmt: skip


def commands(checkout: Checkout) -> dict[str, Any]:
    return {**checkout.evaluate(FOREWARN_COMMANDS), **checkout.evaluate(AGENT_COMMANDS)}


def settings(checkout: Checkout, forewarn: Program) -> dict[str, Any]:
    """Names, variables and defaults from the generated page; kinds by trying values."""
    page = (checkout.root / "docs" / "reference" / "settings.md").read_text("utf-8")
    found = {}
    for name, text in _SETTING.findall(page):
        variable = re.search(r"`(FOREWARN_\w+)`", text)
        default = re.search(r"default:? `([^`]*)`", text, re.IGNORECASE)
        assert variable is not None, f"{name} has no variable"
        ends = {each: forewarn("db", "status", variables={variable[1]: each}).code for each in PROBES}
        found[name] = {
            "variable": variable[1],
            "default": default[1] if default else None,
            "takes": {each: "refused" if code == 2 else "taken" for each, code in ends.items()},
        }
    assert found
    return found


def agent_keys(checkout: Checkout, agent: Program) -> dict[str, Any]:
    """Which keys agent.toml takes: an unknown one ends every command with 2."""
    found: dict[str, Any] = {}
    nobody = {"STATE_DIRECTORY": str(checkout.home / "nobody")}
    for table, (needed, keys) in AGENT_KEYS.items():
        for key, value in (*needed.items(), *keys.items(), ("no-such-key", "1")):
            text = _agent_toml(table, {**needed, key: value})
            file = checkout.home / "agent.toml"
            file.write_text(text)
            file.chmod(0o600)
            refused = agent("status", "--config", str(file), variables=nobody).code == 2
            found.setdefault(table or "top", {})[key] = "refused" if refused else "taken"
    agent("init", str(checkout.home / "new.toml"))
    top = (checkout.home / "new.toml").read_text().partition("[[")[0]
    found["defaults in the template"] = dict(re.findall(r"^(?:# )?([a-z_]+) = (\"[^\"]*\")", top, re.MULTILINE))
    return found


def _agent_toml(table: str, keys: dict[str, str]) -> str:
    lines = "".join(f"{key} = {value}\n" for key, value in keys.items())
    if table == "[rules.when]":
        return f'[[rules]]\ndo = "ignore"\n{table}\n{lines}'
    handler = table.partition(" ")[0]
    return f'[[steps]]\nname = "s"\n[steps.{handler}]\n{lines}' if handler.isalpha() else f"{table}\n{lines}"


def python_names(checkout: Checkout) -> dict[str, Any]:
    folder = checkout.home / "plugin"
    folder.mkdir()
    (folder / "test_plugin.py").write_text(PLUGIN_TEST)
    run = "import pytest, sys, os; os.chdir(sys.argv[1]); code = pytest.main(['-q', '-p', 'no:cacheprovider', '--rootdir=.'])"
    show = "print(open('found.json').read()) if code == 0 else sys.exit(code)"
    plugin = checkout.evaluate(
        f"{run.replace('code =', 'sys.stdout, kept = sys.stderr, sys.stdout; code =')}; sys.stdout = kept; {show}",
        str(folder),
    )
    return {
        "forewarn.guest": checkout.evaluate(GUEST_NAMES),
        "pytest plugin": plugin,
        "entry points": checkout.evaluate(ENTRY_POINTS),
    }


def source_words(checkout: Checkout) -> dict[str, Any]:
    """Which of the rare words stand as texts in the package."""
    texts: set[str] = set()
    for path in sorted((checkout.root / "src").rglob("*.py")):
        texts |= _texts(path)
    return {
        kind: {word: "in the source" if word in texts else "missing" for word in words}
        for kind, words in RARE_WORDS.items()
    }


def _texts(path: Path) -> set[str]:
    nodes = ast.walk(ast.parse(path.read_text("utf-8")))
    return {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}
