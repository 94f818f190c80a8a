"""Wrong: it polls only every six seconds, and ignores SIGTERM."""

import signal

from tests.testing.agents.toy import Toy


class Sluggish(Toy):
    pause_s = 6.0


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    Sluggish().run()
