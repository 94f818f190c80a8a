"""How often each thing was done in a cycle of the ticker."""


class Counts(dict[str, int]):
    """Counts by what was done, as templates of the log line. Unlike a `Counter` it costs an idle cycle almost nothing."""

    def __missing__(self, _: str) -> int:
        return 0

    def add(self, others: "Counts") -> None:
        for template, count in others.items():
            self[template] += count
