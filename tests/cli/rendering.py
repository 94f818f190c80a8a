"""What Rich draws, as text."""

import io

from rich.console import Console, RenderableType


def render(renderable: RenderableType, columns: int = 120) -> str:
    file = io.StringIO()
    Console(file=file, width=columns, force_terminal=False).print(renderable)
    return file.getvalue()
