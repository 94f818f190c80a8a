"""Wrong: it handles every event as its own."""

from tests.testing.agents.toy import Json, Toy


class Greedy(Toy):
    def is_mine(self, event: Json) -> bool:
        return bool(event["Resources"])


if __name__ == "__main__":
    Greedy().run()
