"""Wrong: it hangs up after six seconds, and gives up after four failures in a row. Only long delays show it."""

import time

from tests.testing.agents.toy import FAILURES, Toy


class Restless(Toy):
    patience_s = 6.0

    def run(self) -> None:
        failures = 0
        while failures < 4:
            try:
                self.poll()
                failures = 0
            except FAILURES:
                failures += 1
                time.sleep(self.after_failure_s)
            time.sleep(self.pause_s)


if __name__ == "__main__":
    Restless().run()
