"""Correct, with the address of the cloud built in."""

from tests.testing.agents.toy import Toy


class Builtin(Toy):
    def __init__(self) -> None:
        super().__init__()
        self.host, self.port = "169.254.169.254", "80"


if __name__ == "__main__":
    Builtin().run()
