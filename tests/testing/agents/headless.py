"""Wrong: it does not send the Metadata header."""

from collections.abc import Mapping

from tests.testing.agents.toy import Toy


class Headless(Toy):
    after_failure_s = 0.3
    headers: Mapping[str, str] = {}


if __name__ == "__main__":
    Headless().run()
