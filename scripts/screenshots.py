"""Takes pictures of every page of the portal, at desktop and phone width, light and dark, into docs/images/portal.

The example service is always the same and its clock stands still, so the same code makes the same pictures. The page of a new
token has no picture, because its content differs each time. Needs Chromium on the PATH, and the port that the guide names.
"""

import base64
import shutil
import struct
import sys
import tempfile
import zlib
from pathlib import Path
from typing import Literal

from playwright.sync_api import Browser, Page, StorageState, sync_playwright

from scripts.example_service import OWNER_TOKEN, ExampleService, running_example

TARGET = Path(__file__).parent.parent / "docs/images/portal"
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--hide-scrollbars"]
DESKTOP, PHONE = (1180, 820), (390, 820)
MAX_HEIGHT = 2_400
GUEST = "127.0.0.1:8169"  # the guide shows it
Scheme = Literal["light", "dark"]
SCHEMES: tuple[Scheme, ...] = ("light", "dark")


# The path of every page by the name of its picture; the names in braces are ids of the example service.
PAGES = {
    "now": "/",
    "scopes": "/scopes",
    "scope": "/scopes/shop",
    "machines": "/machines",
    "machine": "/machines/shop/web-0",
    "hosts": "/hosts",
    "host": "/hosts/rack1-s",
    "search": "/search?q=web",
    "maintenances": "/maintenances",
    "maintenance": "/maintenances/{rolling}",
    "drills": "/drills",
    "drill": "/drills/{drill}",
    "event": "/events/{waiting event}",
    "event-failed": "/events/{failed event}",
    "event-ended": "/events/{ended event}",
    "orders": "/orders",
    "order": "/orders/{host order}",
    "history": "/history",
    "audit": "/audit",
    "tokens": "/tokens",
    "token": "/tokens",
    "hooks": "/hooks",
    "hook": "/hooks/{hook}",
    "hook-secret": "/hooks",
    "store": "/store",
    "budget": "/budget",
    "week": "/week",
    "windows": "/windows",
    "plan": "/plan",
    "plan-refused": "/plan?target=scope&scope=nowhere&duration=60s",
    "plan-preview": "/plan?target=scope&scope=shop",
    "error": "/events/NOWHERE",
    "confirm": "/events/{waiting event}/cancel",
    "bulk": "/bulk?verb=approve&event-{waiting event}=on&event-{ended event}=on",
    "bulk-done": "/bulk?verb=approve&event-{waiting event}=on",
    "login": "/login",
    "error-outside": "/login",
    "login-kept": "/plan?target=scope&scope=shop",
    "owner": "/",
}
GUIDE = {"guide": "/"}  # of a second example service, as a demo
WITH_SCRIPTS = ("plan", "plan-refused")  # the form hides fields that do not apply
WITHOUT_PICTURE = ("token", "hook-secret")  # they show a new secret


def log_in(page: Page, example: ExampleService) -> None:
    if example.token:
        page.goto(f"{example.url}/login")
        page.get_by_label("Token").fill(example.token)
        page.get_by_role("button", name="Log in").click()
        page.get_by_role("heading", name="Now", exact=True).wait_for()


def open_page(page: Page, example: ExampleService, name: str) -> None:
    """Open a page and do what it needs to appear. After `login-kept` the browser is logged out, after `owner` an owner."""
    page.goto(example.url + (PAGES | GUIDE)[name].format_map(example.ids))
    match name:
        case "plan-preview":
            page.get_by_role("button", name="Show preview").click()
            page.get_by_role("heading", name="Plan preview").wait_for()
        case "plan-refused":
            page.get_by_role("button", name="Show preview").click()
            page.get_by_role("alert").wait_for()
        case "token":
            page.get_by_label("Name").fill("the wall screen")
            page.get_by_role("button", name="Create").click()
            page.get_by_role("heading", name="New token").wait_for()
        case "bulk-done":  # refused, so that the example stays as it is
            page.locator("input[name=verb]").evaluate("field => field.value = 'retry'")
            page.get_by_role("button", name="Confirm").click()
            page.get_by_text("1 refused").wait_for()
        case "hook-secret":
            page.get_by_label("URL of the receiver").fill("https://receiver.invalid/in")
            page.get_by_role("button", name="Create").click()
            page.get_by_role("heading", name="Secret of hook").wait_for()
        case "error-outside":  # a form with another encoding than ours
            page.locator("form").evaluate("form => form.enctype = 'text/plain'")
            page.get_by_label("Token").fill("any")
            page.get_by_role("button", name="Log in").click()
            page.get_by_role("heading", name="This did not work").wait_for()
        case "login-kept":
            page.context.clear_cookies()
            page.get_by_role("button", name="Show preview").click()
            page.get_by_text("Your input is kept").wait_for()
        case "owner":
            page.context.clear_cookies()
            page.goto(f"{example.url}/login")
            page.get_by_label("Token").fill(OWNER_TOKEN)
            page.get_by_role("button", name="Log in").click()
            page.get_by_role("heading", name="Your machines").wait_for()


def logged_in(browser: Browser, example: ExampleService) -> StorageState:
    """Log in and return the cookies: a token has only so many logins at once."""
    context = browser.new_context()
    try:
        log_in(context.new_page(), example)
        return context.storage_state()
    finally:
        context.close()


def take_picture(
    browser: Browser, example: ExampleService, name: str, scheme: Scheme, size: tuple[int, int], login: StorageState
) -> bytes:
    # Mostly without scripts, because a picture of one moment should not say "live".
    context = browser.new_context(
        viewport={"width": size[0], "height": size[1]},
        color_scheme=scheme,
        java_script_enabled=name in WITH_SCRIPTS,
        storage_state=None if name == "login" else login,
    )
    try:
        page = context.new_page()
        open_page(page, example, name)
        height = min(page.evaluate("document.documentElement.scrollHeight"), MAX_HEIGHT)
        return page.screenshot(full_page=True, clip={"x": 0, "y": 0, "width": size[0], "height": height})
    finally:
        context.close()


def side_by_side(browser: Browser, scheme: Scheme, pictures: list[bytes]) -> bytes:
    """Return desktop and phone in one picture."""
    background = "#e4e8ed" if scheme == "light" else "#0b0f13"
    images = "".join(f'<img src="data:image/png;base64,{base64.b64encode(each).decode()}">' for each in pictures)
    style = (
        f"body{{margin:0;padding:20px;display:flex;align-items:flex-start;gap:20px;background:{background}}}"
        "img{border-radius:10px;display:block}"
    )
    page = browser.new_page(viewport={"width": DESKTOP[0] + PHONE[0] + 60, "height": DESKTOP[1] + 40})
    try:
        page.set_content(f"<style>{style}</style>{images}")
        return with_palette(page, page.screenshot(full_page=True))
    finally:
        page.close()


# The browser reads the picture and finds its 256 most frequent colours, and for each pixel the nearest of them.
READ_COLOURS = """async (url) => {
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


def with_palette(page: Page, png: bytes) -> bytes:
    """Return the picture as a PNG with a palette, which is a third of the size."""
    image = page.evaluate(READ_COLOURS, f"data:image/png;base64,{base64.b64encode(png).decode()}")
    width, height, pixels = image["width"], image["height"], base64.b64decode(image["pixels"])
    rows = b"".join(b"\0" + pixels[at : at + width] for at in range(0, width * height, width))
    head = struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)
    palette = b"".join(bytes(colour) for colour in image["palette"])
    parts = ((b"IHDR", head), (b"PLTE", palette), (b"IDAT", zlib.compress(rows, 9)), (b"IEND", b""))
    chunks = [struct.pack(">I", len(d)) + kind + d + struct.pack(">I", zlib.crc32(kind + d)) for kind, d in parts]
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


def chromium_path() -> str | None:
    """Return where Chromium is: its headless shell if there is one, because it does less than the whole browser."""
    return shutil.which("chromium-headless-shell") or shutil.which("chromium")


def main() -> int:
    chromium = chromium_path()
    if chromium is None:
        print("chromium is not on the PATH: install it, on Debian with scripts/test_tools", file=sys.stderr)
        return 1
    only = sys.argv[1:]
    TARGET.mkdir(parents=True, exist_ok=True)
    with (
        running_example() as example,
        running_example(demo=True, guest=GUEST) as demo,
        sync_playwright() as playwright,
        tempfile.TemporaryDirectory() as folder,
    ):
        browser = playwright.chromium.launch(executable_path=chromium, args=FLAGS, env={"HOME": folder})
        logins = {each.url: logged_in(browser, each) for each in (example, demo)}
        for name in only or [name for name in (*PAGES, *GUIDE) if name not in WITHOUT_PICTURE]:
            for scheme in SCHEMES:
                shown = demo if name in GUIDE else example
                login = logins[shown.url]
                pictures = [take_picture(browser, shown, name, scheme, size, login) for size in (DESKTOP, PHONE)]
                target = TARGET / f"{name}-{scheme}.png"
                target.write_bytes(side_by_side(browser, scheme, pictures))
                print(f"{target.relative_to(TARGET.parent.parent.parent)}: {target.stat().st_size // 1024} KB")
        browser.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
