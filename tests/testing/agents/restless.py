"""Wrong: it hangs up after six seconds, and gives up after six seconds of failures. Only long delays show it."""

import time

from tests.testing.agents.toy import FAILURES, Toy


class Restless(Toy):
    patience_s = 6.0

    def run(self) -> None:
        answered_s = time.monotonic()
        while time.monotonic() < answered_s + 6.0:
            try:
                self.poll()
                answered_s = time.monotonic()
            except FAILURES:
                time.sleep(self.after_failure_s)
            time.sleep(self.pause_s)


if __name__ == "__main__":
    Restless().run()
