"""Pictures of every page of the portal, at desktop and phone width, light and dark, into docs/images/portal.

The service is staged and its clock stands still, so the same code makes the same pictures: but for a new token, of which there is
none. Needs Chromium on the PATH, and the port that the guide names.
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
MAX_HEIGHT = 2_400
GUEST = "127.0.0.1:8169"  # the guide names it
Scheme = Literal["light", "dark"]
SCHEMES: tuple[Scheme, ...] = ("light", "dark")


# Every page, by the name of its picture, and where it is; the words in braces are the stage's.
PAGES = {
    "now": "/",
    "scopes": "/scopes",
    "scope": "/scopes/shop",
    "machines": "/machines",
    "maintenances": "/maintenances",
    "maintenance": "/maintenances/{rolling}",
    "event": "/events/{waiting event}",
    "event-failed": "/events/{failed event}",
    "event-ended": "/events/{ended event}",
    "orders": "/orders",
    "history": "/history",
    "audit": "/audit",
    "tokens": "/tokens",
    "token": "/tokens",
    "plan": "/plan",
    "plan-refused": "/plan?target=scope&scope=nowhere&duration_s=60",
    "looked": "/plan?target=scope&scope=shop",
    "error": "/events/NOWHERE",
    "confirm": "/events/{waiting event}/cancel",
    "login": "/login",
    "error-outside": "/login",
    "login-kept": "/plan?target=scope&scope=shop",
}
GUIDE = {"guide": "/"}  # on a stage of its own: the demo's
SECRET = ("token",)  # another each time, and no picture


def log_in(page: Page, stage: Stage) -> None:
    if stage.token:
        page.goto(f"{stage.url}/login")
        page.get_by_label("Token").fill(stage.token)
        page.get_by_role("button", name="Log in").click()
        page.get_by_role("heading", name="Now", exact=True).wait_for()


def visit(page: Page, stage: Stage, name: str) -> None:
    """Go to a page, and do there what makes it; after `login-kept` one is logged out."""
    page.goto(stage.url + (PAGES | GUIDE)[name].format_map(stage.ids))
    match name:
        case "looked":
            page.get_by_role("button", name="Show preview").click()
            page.get_by_role("heading", name="Plan preview").wait_for()
        case "plan-refused":
            page.get_by_role("button", name="Show preview").click()
            page.get_by_role("alert").wait_for()
        case "token":
            page.get_by_label("Name").fill("the wall screen")
            page.get_by_role("button", name="Create").click()
            page.get_by_role("heading", name="New token").wait_for()
        case "error-outside":  # a form in another form than ours
            page.locator("form").evaluate("form => form.enctype = 'text/plain'")
            page.get_by_label("Token").fill("any")
            page.get_by_role("button", name="Log in").click()
            page.get_by_role("heading", name="This did not work").wait_for()
        case "login-kept":
            page.context.clear_cookies()
            page.get_by_role("button", name="Show preview").click()
            page.get_by_text("Your input is kept").wait_for()


def shot(browser: Browser, stage: Stage, name: str, scheme: Scheme, size: tuple[int, int]) -> bytes:
    # The pages are pictures of one moment: no script, so nothing says "live".
    context = browser.new_context(
        viewport={"width": size[0], "height": size[1]}, color_scheme=scheme, java_script_enabled=name.startswith("plan")
    )
    try:
        page = context.new_page()
        if name != "login":
            log_in(page, stage)
        visit(page, stage, name)
        height = min(page.evaluate("document.documentElement.scrollHeight"), MAX_HEIGHT)
        return page.screenshot(full_page=True, clip={"x": 0, "y": 0, "width": size[0], "height": height})
    finally:
        context.close()


def beside(browser: Browser, scheme: Scheme, pictures: list[bytes]) -> bytes:
    """Desktop and phone in one picture."""
    ground = "#e4e8ed" if scheme == "light" else "#0b0f13"
    images = "".join(f'<img src="data:image/png;base64,{base64.b64encode(each).decode()}">' for each in pictures)
    style = (
        f"body{{margin:0;padding:20px;display:flex;align-items:flex-start;gap:20px;background:{ground}}}"
        "img{border-radius:10px;display:block}"
    )
    page = browser.new_page(viewport={"width": DESKTOP[0] + PHONE[0] + 60, "height": DESKTOP[1] + 40})
    try:
        page.set_content(f"<style>{style}</style>{images}")
        return few_colours(page, page.screenshot(full_page=True))
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
        staged() as stage,
        staged(demo=True, guest=GUEST) as demo,
        sync_playwright() as playwright,
        tempfile.TemporaryDirectory() as folder,
    ):
        browser = playwright.chromium.launch(executable_path=chromium, args=FLAGS, env={"HOME": folder})
        for name in only or [name for name in (*PAGES, *GUIDE) if name not in SECRET]:
            for scheme in SCHEMES:
                where = demo if name in GUIDE else stage
                pictures = [shot(browser, where, name, scheme, size) for size in (DESKTOP, PHONE)]
                target = TARGET / f"{name}-{scheme}.png"
                target.write_bytes(beside(browser, scheme, pictures))
                print(f"{target.relative_to(TARGET.parent.parent.parent)}: {target.stat().st_size // 1024} KB")
        browser.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
