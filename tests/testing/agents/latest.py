"""Wrong: it requests the version `latest`."""

from tests.testing.agents.toy import Toy


class Latest(Toy):
    after_failure_s = 0.3
    version = "latest"


if __name__ == "__main__":
    Latest().run()
