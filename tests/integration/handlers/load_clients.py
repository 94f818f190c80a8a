"""Clients that send requests without pause and without retries: `load_clients.py STOP OUT CLIENTS URL…`, until STOP exists.

Each client sends the next request when the last was answered, every tenth a slow one, to the addresses in turn. What came of
them is JSON in OUT: answers by who gave them, and everything that was not 2xx by what it was. OUT.begun is there once each
client has had its share of answers; so many more it asks for after STOP.
"""

import http.client
import itertools
import json
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from urllib.parse import urlsplit

# A machine that is off refuses at once: only a busy one takes long to answer, and loses nothing by that.
TIMEOUT_S = 60
SHARE = 12


def request(address: str, path: str) -> tuple[int, str]:
    connection = http.client.HTTPConnection(address, timeout=TIMEOUT_S)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def client(number: int, addresses: list[str], stop: Path, answers: Counter[str], errors: Counter[str]) -> None:
    left = SHARE
    for turn in itertools.count(number):
        left -= stop.exists()
        if not left:
            return
        try:
            status, who = request(addresses[turn % len(addresses)], "/slow" if turn % 10 == 0 else "/")
            (answers if 200 <= status < 300 else errors)[who if 200 <= status < 300 else str(status)] += 1
        except (OSError, http.client.HTTPException) as error:
            errors[type(error).__name__] += 1


def main() -> None:
    stop, out, clients = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
    addresses = [urlsplit(url).netloc for url in sys.argv[4:]]
    counted: list[tuple[Counter[str], Counter[str]]] = [(Counter(), Counter()) for _ in range(clients)]
    threads = [threading.Thread(target=client, args=(n, addresses, stop, *counted[n])) for n in range(clients)]
    for thread in threads:
        thread.start()
    while any(sum(mine.values()) + sum(wrong.values()) < SHARE for mine, wrong in counted):
        time.sleep(0.05)
    out.with_suffix(".begun").touch()
    for thread in threads:
        thread.join()
    answers, errors = Counter[str](), Counter[str]()
    for mine, wrong in counted:
        answers.update(mine)
        errors.update(wrong)
    out.with_suffix(".part").write_text(json.dumps({"answers": answers, "errors": errors}))
    out.with_suffix(".part").rename(out)


if __name__ == "__main__":
    main()
