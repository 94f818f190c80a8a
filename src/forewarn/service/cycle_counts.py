"""How often a cycle of the ticker did each thing."""


class CycleCounts(dict[str, int]):
    """Counts by what was done, as templates of the log line. Unlike a `Counter`, it costs an idle cycle almost nothing."""

    def __missing__(self, _: str) -> int:
        return 0

    def add(self, others: "CycleCounts") -> None:
        for template, count in others.items():
            self[template] += count
