"""What Redis servers and Sentinels say about who is master. The handler asks each of them and believes none alone."""

from __future__ import annotations

from typing import Dict, List, NamedTuple, Optional, Sequence, Tuple

from forewarn.guest.config_values import read_secret
from forewarn.guest.errors import StepFailed
from forewarn.guest.handlers.redis_protocol import ErrorReply, Reply, parse_info, query
from forewarn.guest.steps import Run

# A server that does not answer within this does not answer.
RESPONSE_WITHIN_S = 2.0
POLL_S = 0.1
MAX_REPLICAS = 100
MAX_DIGITS = 20


class Spec(NamedTuple):
    # This machine's own Redis.
    address: str
    # The replica that takes over; without it the one with most of the data.
    replica: str = ""
    sentinels: Tuple[str, ...] = ()
    # The Sentinels' name for these servers.
    master: str = ""
    user: str = ""
    password_file: str = ""
    sentinel_password_file: str = ""


class Replica(NamedTuple):
    address: str
    online: bool
    # Bytes that it has not received yet.
    behind: int


class ServerInfo(NamedTuple):
    """One server, by its own INFO."""

    address: str
    role: str
    run_id: str
    # Of a replica: the server that it follows, and whether the connection to it is up.
    follows: str
    linked: bool
    # Of a master: no failover is under way.
    no_failover: bool
    replicas: Tuple[Replica, ...]

    @property
    def is_master(self) -> bool:
        return self.role == "master"


def send(spec: Spec, arguments: Sequence[str], address: str = "", *, seconds: float = RESPONSE_WITHIN_S) -> Reply:
    """Send a command to one of the servers, by default our own."""
    login = [read_secret(spec.password_file)] if spec.password_file else []
    return query(address or spec.address, arguments, login=[spec.user, *login] if spec.user else login, seconds=seconds)


def send_to_sentinel(
    spec: Spec, address: str, arguments: Sequence[str], *, seconds: float = RESPONSE_WITHIN_S
) -> Reply:
    login = [read_secret(spec.sentinel_password_file)] if spec.sentinel_password_file else []
    return query(address, ("SENTINEL", *arguments), login=login, seconds=seconds)


def follow(spec: Spec, run: Run, leader: str) -> str:
    """Make our own server follow the leader; return "", or why it may not do so yet. Raise StepFailed if it refuses."""
    try:
        send(spec, ("REPLICAOF", *split_address(leader)), seconds=run.timeout_s(RESPONSE_WITHIN_S))
    except OSError as error:
        return f"{spec.address} did not answer REPLICAOF: {error}"
    except ErrorReply as error:
        raise StepFailed(f"{spec.address} refuses REPLICAOF: {error}") from None
    return ""


def server_info(spec: Spec, run: Run, address: str = "") -> Optional[ServerInfo]:
    """Return a server's own INFO, or None when it does not answer; raise StepFailed on an error reply."""
    address = address or spec.address
    try:
        info = parse_info(send(spec, ("INFO",), address, seconds=run.timeout_s(RESPONSE_WITHIN_S)))
    except OSError:
        return None
    except ErrorReply as error:
        raise StepFailed(f"{address}: {error}") from None
    return ServerInfo(
        address=address,
        role=info.get("role", ""),
        run_id=info.get("run_id", ""),
        follows=join_address(info["master_host"], info.get("master_port", "")) if "master_host" in info else "",
        linked=info.get("master_link_status") == "up",
        no_failover=info.get("master_failover_state", "no-failover") == "no-failover",
        replicas=_replicas(info),
    )


def own_server(spec: Spec, run: Run) -> ServerInfo:
    """Return our own server's INFO. Repeat the request until it answers; raise OutOfTime at the end of the step's time."""
    answers: List[ServerInfo] = []

    def answered() -> Tuple[bool, str]:
        info = server_info(spec, run)
        if info is not None:
            answers.append(info)
        return bool(answers), no_answer(spec)

    run.require(answered, POLL_S)
    return answers[0]


def no_answer(spec: Spec) -> str:
    return f"{spec.address}, this machine's Redis, does not answer"


def master_by_sentinels(spec: Spec, run: Run) -> str:
    """Return the master's address that more than half of the Sentinels give, or ""."""
    masters: List[str] = []
    for sentinel in spec.sentinels:
        try:
            answer = send_to_sentinel(
                spec, sentinel, ("GET-MASTER-ADDR-BY-NAME", spec.master), seconds=run.timeout_s(RESPONSE_WITHIN_S)
            )
        except (OSError, ErrorReply):
            continue
        if isinstance(answer, list) and len(answer) == 2:
            masters.append(join_address(str(answer[0]), str(answer[1])))
    best = max(masters, key=masters.count, default="")
    return best if masters.count(best) * 2 > len(spec.sentinels) else ""


def join_address(host: str, port: str) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def split_address(address: str) -> Tuple[str, str]:
    host, _, port = address.rpartition(":")
    return host.strip("[]"), port


def _replicas(info: Dict[str, str]) -> Tuple[Replica, ...]:
    replicas = []
    for number in range(min(MAX_REPLICAS, _number(info.get("connected_slaves", "")))):
        pairs = (pair.partition("=") for pair in info.get(f"slave{number}", "").split(","))
        fields = {key: value for key, _, value in pairs}
        behind = _number(info.get("master_repl_offset", "")) - _number(fields.get("offset", ""))
        address = join_address(fields.get("ip", ""), fields.get("port", ""))
        replicas.append(Replica(address, fields.get("state") == "online", behind))
    return tuple(replicas)


def _number(text: str) -> int:
    return int(text) if text.isdecimal() and len(text) < MAX_DIGITS else 0
