"""What Redis servers and Sentinels say of who is master: asked of each of them, believed of none alone."""

from __future__ import annotations

from typing import Dict, List, NamedTuple, Optional, Sequence, Tuple

from forewarn.guest.config_values import secret_in
from forewarn.guest.errors import StepFailed
from forewarn.guest.handlers.redis_protocol import Complaint, Reply, ask, facts
from forewarn.guest.steps import Run

# One that does not answer within this does not answer.
ASK_S = 2.0
MAX_REPLICAS = 100
MAX_DIGITS = 20


class Spec(NamedTuple):
    # This machine's own Redis.
    address: str
    # Who is to take over; without it the replica that has most of the data.
    replica: str = ""
    sentinels: Tuple[str, ...] = ()
    # What the Sentinels call these servers.
    master: str = ""
    user: str = ""
    password_file: str = ""
    sentinel_password_file: str = ""


class Replica(NamedTuple):
    address: str
    online: bool
    # Bytes it has yet to receive.
    behind: int


class Side(NamedTuple):
    """One server, as it says itself."""

    address: str
    role: str
    run_id: str
    # Of a replica: whom it follows, and whether that connection stands.
    follows: str
    linked: bool
    # Of a master: nobody is taking over from it just now.
    calm: bool
    replicas: Tuple[Replica, ...]

    @property
    def is_master(self) -> bool:
        return self.role == "master"


def patience_s(run: Run) -> float:
    return max(0.1, min(ASK_S, run.left_s()))


def say_to(spec: Spec, words: Sequence[str], address: str = "", *, seconds: float = ASK_S) -> Reply:
    """A command for one of the servers, by default our own."""
    login = [secret_in(spec.password_file)] if spec.password_file else []
    return ask(address or spec.address, words, login=[spec.user, *login] if spec.user else login, seconds=seconds)


def say_to_sentinel(spec: Spec, address: str, words: Sequence[str], *, seconds: float = ASK_S) -> Reply:
    login = [secret_in(spec.sentinel_password_file)] if spec.sentinel_password_file else []
    return ask(address, ("SENTINEL", *words), login=login, seconds=seconds)


def must(spec: Spec, run: Run, *words: str) -> None:
    """A command our own server has to obey."""
    try:
        say_to(spec, words, seconds=patience_s(run))
    except OSError as error:
        raise StepFailed(f"{spec.address} did not answer {words[0]}: {error}") from None
    except Complaint as error:
        raise StepFailed(f"{spec.address} refuses {words[0]}: {error}") from None


def side(spec: Spec, run: Run, address: str = "") -> Optional[Side]:
    """None when it does not answer; its complaint is a failure."""
    address = address or spec.address
    try:
        info = facts(say_to(spec, ("INFO",), address, seconds=patience_s(run)))
    except OSError:
        return None
    except Complaint as error:
        raise StepFailed(f"{address}: {error}") from None
    return Side(
        address=address,
        role=info.get("role", ""),
        run_id=info.get("run_id", ""),
        follows=joined(info["master_host"], info.get("master_port", "")) if "master_host" in info else "",
        linked=info.get("master_link_status") == "up",
        calm=info.get("master_failover_state", "no-failover") == "no-failover",
        replicas=_replicas(info),
    )


def mine(spec: Spec, run: Run) -> Side:
    found = side(spec, run)
    if found is None:
        raise StepFailed(f"{spec.address}, this machine's Redis, does not answer")
    return found


def agreed(spec: Spec, run: Run) -> str:
    """The master's address by more than half of the Sentinels; "" when there is no such half."""
    said: List[str] = []
    for each in spec.sentinels:
        try:
            answer = say_to_sentinel(spec, each, ("GET-MASTER-ADDR-BY-NAME", spec.master), seconds=patience_s(run))
        except (OSError, Complaint):
            continue
        if isinstance(answer, list) and len(answer) == 2:
            said.append(joined(str(answer[0]), str(answer[1])))
    best = max(said, key=said.count, default="")
    return best if said.count(best) * 2 > len(spec.sentinels) else ""


def joined(host: str, port: str) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def split(address: str) -> Tuple[str, str]:
    host, _, port = address.rpartition(":")
    return host.strip("[]"), port


def _replicas(info: Dict[str, str]) -> Tuple[Replica, ...]:
    found = []
    for number in range(min(MAX_REPLICAS, _whole(info.get("connected_slaves", "")))):
        pairs = (pair.partition("=") for pair in info.get(f"slave{number}", "").split(","))
        of = {key: value for key, _, value in pairs}
        behind = _whole(info.get("master_repl_offset", "")) - _whole(of.get("offset", ""))
        found.append(Replica(joined(of.get("ip", ""), of.get("port", "")), of.get("state") == "online", behind))
    return tuple(found)


def _whole(text: str) -> int:
    return int(text) if text.isdecimal() and len(text) < MAX_DIGITS else 0
