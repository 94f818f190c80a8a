"""The recipes for Compose and Kubernetes are valid YAML, and their parts fit together."""

import tomllib
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]

from forewarn.guest.config import Config, parse

EXAMPLES = Path(__file__).parents[3] / "examples" / "clients"


def config(toml: str) -> Config:
    return parse(tomllib.loads(toml), {})


def test_the_compose_file() -> None:
    """Each application mounts the volume of its own socket, where its endpoint is, and the agent mounts all of them."""
    compose: dict[str, Any] = yaml.safe_load((EXAMPLES / "compose.yaml").read_text("utf-8"))
    agent, *applications = compose["services"].items()
    served = config((EXAMPLES / "agent.toml").read_text("utf-8"))
    mounts = {path: volume for volume, path, *_ in (each.split(":") for each in agent[1]["volumes"])}
    assert {name for name, _ in applications} == {client.name for client in served.clients}
    assert mounts["/etc/forewarn/agent.toml"] == "./agent.toml"
    assert mounts[str(served.state_dir)] == "agent-state"
    assert {volume for volume in mounts.values() if not volume.startswith(".")} == set(compose["volumes"])
    for client, (name, application) in zip(served.clients, applications, strict=True):
        assert client.name == name
        assert client.path is not None
        (mount,) = application["volumes"]
        assert mount == f"{mounts[str(client.path.parent)]}:/run/forewarn"
        assert application["environment"]["FOREWARN_ENDPOINT"] == f"unix:/run/forewarn/{client.path.name}"
        assert client.mode == 0o666, "its user is another one than the agent's"


def test_the_kubernetes_file() -> None:
    """Each container of the pod has the port of its own client; the sidecar mounts its configuration and a lasting journal."""
    text = (EXAMPLES / "kubernetes.yaml").read_text("utf-8")
    settings, workload = yaml.safe_load_all(text)
    assert (settings["kind"], workload["kind"]) == ("ConfigMap", "DaemonSet")
    assert (
        workload["spec"]["selector"]["matchLabels"].items()
        <= workload["spec"]["template"]["metadata"]["labels"].items()
    )
    pod = workload["spec"]["template"]["spec"]
    served = config(settings["data"]["agent.toml"])
    endpoints = {each["name"]: each["env"][0] for each in pod["containers"]}
    assert endpoints == {
        client.name: {"name": "FOREWARN_ENDPOINT", "value": f"http://{client.address}"} for client in served.clients
    }
    (sidecar,) = pod["initContainers"]
    assert sidecar["restartPolicy"] == "Always"
    mounts = {each["name"]: each for each in sidecar["volumeMounts"]}
    volumes = {each["name"]: each for each in pod["volumes"]}
    assert set(mounts) == set(volumes)
    assert mounts["configuration"]["mountPath"] == sidecar["command"][-1]
    assert mounts["configuration"]["subPath"] in settings["data"]
    assert volumes["configuration"]["configMap"]["name"] == settings["metadata"]["name"]
    assert mounts["journal"]["mountPath"] == str(served.state_dir)
    assert "hostPath" in volumes["journal"]
