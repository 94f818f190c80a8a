"""Pictures of every page of the portal, at desktop and phone width, light and dark, into docs/images/portal.

The service is staged and its clock stands still, so the same code makes the same pictures. Needs Chromium on the PATH.
"""

import base64
import shutil
import struct
import sys
import tempfile
import zlib
from pathlib import Path
from typing import Literal

from playwright.sync_api import Browser, Page, sync_playwright

from scripts.staged import Stage, staged

TARGET = Path(__file__).parent.parent / "docs/images/portal"
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--hide-scrollbars"]
DESKTOP, PHONE = (1180, 820), (390, 820)
Scheme = Literal["light", "dark"]
SCHEMES: tuple[Scheme, ...] = ("light", "dark")


def paths(stage: Stage) -> dict[str, str]:
    ids = stage.ids
    return {
        "now": "/",
        "scopes": "/scopes",
        "scope": "/scopes/shop",
        "machines": "/machines",
        "maintenances": "/maintenances",
        "maintenance": f"/maintenances/{ids['rolling']}",
        "event": f"/events/{ids['waiting event']}",
        "event-failed": f"/events/{ids['failed event']}",
        "event-ended": f"/events/{ids['ended event']}",
        "orders": "/orders",
        "history": "/history",
        "audit": "/audit",
        "tokens": "/tokens",
        "plan": "/plan",
        "looked": "/plan",
        "error": "/events/NOWHERE",
        "login": "/login",
    }


def visit(page: Page, stage: Stage, name: str, path: str) -> None:
    page.goto(stage.url + path)
    if name == "looked":
        page.get_by_role("textbox", name="Name of the scope").or_(page.locator("[name=scope]")).first.fill("shop")
        page.get_by_role("button", name="Show what would happen").click()
        page.get_by_role("heading", name="What would happen").wait_for()


def shot(browser: Browser, stage: Stage, name: str, path: str, scheme: Scheme, size: tuple[int, int]) -> bytes:
    # The pages are pictures of one moment: no script, so nothing says "live".
    context = browser.new_context(
        viewport={"width": size[0], "height": size[1]}, color_scheme=scheme, java_script_enabled=name == "plan"
    )
    try:
        page = context.new_page()
        if stage.token and name != "login":
            page.goto(f"{stage.url}/login")
            page.get_by_label("Token").fill(stage.token)
            page.get_by_role("button", name="Log in").click()
        visit(page, stage, name, path)
        return page.screenshot()
    finally:
        context.close()


def beside(browser: Browser, scheme: Scheme, pictures: list[bytes]) -> bytes:
    """Desktop and phone in one picture."""
    ground = "#e4e8ed" if scheme == "light" else "#0b0f13"
    images = "".join(f'<img src="data:image/png;base64,{base64.b64encode(each).decode()}">' for each in pictures)
    style = f"body{{margin:0;padding:20px;display:flex;gap:20px;background:{ground}}}img{{border-radius:10px;display:block}}"
    page = browser.new_page(viewport={"width": DESKTOP[0] + PHONE[0] + 60, "height": DESKTOP[1] + 40})
    try:
        page.set_content(f"<style>{style}</style>{images}")
        return few_colours(page, page.screenshot())
    finally:
        page.close()


# The browser reads its own picture back: the 256 colours it has most of, and for each pixel the nearest of them.
COLOURS = """async (url) => {
  const image = await createImageBitmap(await (await fetch(url)).blob());
  const canvas = new OffscreenCanvas(image.width, image.height).getContext("2d");
  canvas.drawImage(image, 0, 0);
  const pixels = new Uint32Array(canvas.getImageData(0, 0, image.width, image.height).data.buffer);
  const counts = new Map();
  for (const each of pixels) counts.set(each, (counts.get(each) || 0) + 1);
  const palette = [...counts].sort((a, b) => b[1] - a[1]).slice(0, 256).map(([each]) => each);
  const parts = (each) => [each & 255, (each >> 8) & 255, (each >> 16) & 255];
  const known = palette.map(parts), nearest = new Map();
  for (const each of counts.keys()) {
    const [r, g, b] = parts(each);
    let best = 0, least = Infinity;
    known.forEach(([x, y, z], index) => {
      const far = (r - x) ** 2 + (g - y) ** 2 + (b - z) ** 2;
      if (far < least) [best, least] = [index, far];
    });
    nearest.set(each, best);
  }
  let text = "";
  for (let at = 0; at < pixels.length; at += 8192) {
    text += String.fromCharCode(...Array.from(pixels.subarray(at, at + 8192), (each) => nearest.get(each)));
  }
  return { width: image.width, height: image.height, palette: known, pixels: btoa(text) };
}"""


def few_colours(page: Page, png: bytes) -> bytes:
    """The same picture as a PNG with a palette: a third of the size."""
    read = page.evaluate(COLOURS, f"data:image/png;base64,{base64.b64encode(png).decode()}")
    width, height, pixels = read["width"], read["height"], base64.b64decode(read["pixels"])
    rows = b"".join(b"\0" + pixels[at : at + width] for at in range(0, width * height, width))
    head = struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)
    palette = b"".join(bytes(colour) for colour in read["palette"])
    parts = ((b"IHDR", head), (b"PLTE", palette), (b"IDAT", zlib.compress(rows, 9)), (b"IEND", b""))
    chunks = [struct.pack(">I", len(d)) + kind + d + struct.pack(">I", zlib.crc32(kind + d)) for kind, d in parts]
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


def main() -> int:
    chromium = shutil.which("chromium")
    if chromium is None:
        print("there is no chromium on the PATH: install it, on Debian with scripts/test_tools", file=sys.stderr)
        return 1
    only = sys.argv[1:]
    TARGET.mkdir(parents=True, exist_ok=True)
    with (
        staged(token_free=False) as stage,
        sync_playwright() as playwright,
        tempfile.TemporaryDirectory() as folder,
    ):
        browser = playwright.chromium.launch(executable_path=chromium, args=FLAGS, env={"HOME": folder})
        for name, path in paths(stage).items():
            for scheme in SCHEMES:
                if only and name not in only:
                    continue
                pictures = [shot(browser, stage, name, path, scheme, size) for size in (DESKTOP, PHONE)]
                target = TARGET / f"{name}-{scheme}.png"
                target.write_bytes(beside(browser, scheme, pictures))
                print(f"{target.relative_to(TARGET.parent.parent.parent)}: {target.stat().st_size // 1024} KB")
        browser.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
