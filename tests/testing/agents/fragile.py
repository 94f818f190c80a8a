"""Wrong: it ends with a traceback at the first thing that goes wrong."""

import time

from tests.testing.agents.toy import Toy


class Fragile(Toy):
    def run(self) -> None:
        while True:
            self.turn()
            time.sleep(self.pause_s)


if __name__ == "__main__":
    Fragile().run()
