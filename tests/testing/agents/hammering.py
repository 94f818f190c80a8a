"""Wrong: it asks as fast as it can, and at once again when it is turned away."""

from tests.testing.agents.toy import Json, Toy


class Hammering(Toy):
    pause_s = 0.0
    after_failure_s = 0.0

    def ask(self, method: str, body: str = "") -> Json:
        while True:
            try:
                return super().ask(method, body)
            except ValueError:
                continue


if __name__ == "__main__":
    Hammering().run()
