"""A bar chart as SVG, with nothing but Python: names, figures, and the line they are held against."""

from collections.abc import Sequence
from html import escape
from pathlib import Path

WIDTH, LEFT, BAR, GAP, TOP = 720, 330, 20, 10, 54
ROOM = WIDTH - LEFT - 70


def draw(path: Path, title: str, bars: Sequence[tuple[str, float]], *, goal: float, goal_name: str) -> None:
    """Bars from 0, and a line at `goal`."""
    most = max(goal, *(value for _, value in bars)) * 1.05
    height = TOP + len(bars) * (BAR + GAP) + 30
    goal_x = LEFT + ROOM * goal / most
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" font-size="13">',
        f'<rect width="{WIDTH}" height="{height}" fill="#fff"/>',
        f'<text x="12" y="24" font-size="15" font-weight="bold">{escape(title)}</text>',
    ]
    for number, (name, value) in enumerate(bars):
        y = TOP + number * (BAR + GAP)
        length = ROOM * value / most
        lines += [
            f'<text x="{LEFT - 8}" y="{y + 15}" text-anchor="end">{escape(name)}</text>',
            f'<rect x="{LEFT}" y="{y}" width="{length:.1f}" height="{BAR}" fill="#3b6ea5"/>',
            f'<text x="{LEFT + length + 6:.1f}" y="{y + 15}">{value:.2f}</text>',
        ]
    bottom = TOP + len(bars) * (BAR + GAP)
    lines += [
        f'<line x1="{goal_x:.1f}" y1="{TOP - 8}" x2="{goal_x:.1f}" y2="{bottom}" stroke="#b33" stroke-dasharray="4 3"/>',
        f'<text x="{goal_x:.1f}" y="{bottom + 16}" text-anchor="middle" fill="#b33">{escape(goal_name)}</text>',
        "</svg>",
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n")
