"""Wrong: it crashes at the first failure."""

import time

from tests.testing.agents.toy import Toy


class Fragile(Toy):
    def run(self) -> None:
        while True:
            self.poll()
            time.sleep(self.pause_s)


if __name__ == "__main__":
    Fragile().run()
