"""Wrong: it believes that incarnations only grow, and passes over a document that is not newer."""

from tests.testing.agents.toy import Json, Toy


class Ordered(Toy):
    last = 0

    def is_news(self, document: Json) -> bool:
        news = document["DocumentIncarnation"] > self.last
        self.last = max(self.last, document["DocumentIncarnation"])
        return bool(news)


if __name__ == "__main__":
    Ordered().run()
