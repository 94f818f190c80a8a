"""Wrong: it asks as fast as it can, and at once again when it is turned away."""

from tests.testing.agents.toy import Toy


class Hammering(Toy):
    pause_s = 0.0
    after_failure_s = 0.0


if __name__ == "__main__":
    Hammering().run()
