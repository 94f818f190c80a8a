"""Wrong: it ignores a document whose incarnation is not higher than the last."""

from tests.testing.agents.toy import Json, Toy


class Ordered(Toy):
    last = 0

    def is_new(self, document: Json) -> bool:
        is_new = document["DocumentIncarnation"] > self.last
        self.last = max(self.last, document["DocumentIncarnation"])
        return bool(is_new)


if __name__ == "__main__":
    Ordered().run()
