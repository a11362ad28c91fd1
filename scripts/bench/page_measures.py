"""What `bench_page` measures inside the browser: paints, frames, nodes, bytes."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import numpy as np

if TYPE_CHECKING:
    from playwright.sync_api import Page

LONG_MS = 50  # a frame that took longer is felt
CARDS = 30  # about a screen
_WHEEL_PX, _WHEEL_EVERY_MS = 1000, 16
_KEY_EVERY_MS = 33  # a held key repeats so
_STEPS = 5  # of the wheel between two looks whether it was enough
_WAIT_MS = 600_000

# `pictured`: when the first cards had their pictures, in milliseconds of the page's own clock. Promises, because
# `wait_for_function` evaluates text, which the page's content security policy forbids.
_WATCH_PICTURES = """
    window.pictured = new Promise((done, fail) => {
        const look = () => {
            const cards = [...document.querySelectorAll("SELECTOR")].slice(0, CARDS);
            const there = cards.filter((card) => card.querySelector("img")?.naturalWidth);
            if (there.length === CARDS) done(performance.now());
            else if (performance.now() > WAIT_MS) fail(new Error(`${there.length} cards have their pictures`));
            else requestAnimationFrame(look);
        };
        requestAnimationFrame(look);
    });
"""
_FIRST_PAINT = """async () => {
    const pictured = await window.pictured;
    return [performance.getEntriesByName("first-contentful-paint")[0].startTime, pictured];
}"""
_RECORD = """() => {
    window.frames = [];
    window.nodes = 0;
    let before;
    const frame = (now) => {
        if (before != null) window.frames.push(now - before);
        before = now;
        window.nodes = Math.max(window.nodes, document.getElementsByTagName("*").length);
        if (!window.still) requestAnimationFrame(frame);
    };
    window.still = false;
    requestAnimationFrame(frame);
}"""
_LAST = """(cards) => {
    const last = document.querySelector(`.card[aria-posinset="${cards}"]`);
    const setsize = last?.getAttribute("aria-setsize");
    return last?.querySelector("img")?.naturalWidth ? { setsize: Number(setsize), text: last.innerText } : null;
}"""
_RECORDED = """() => {
    window.still = true;
    return {
        frames: window.frames,
        nodes: document.getElementsByTagName("*").length,
        most: window.nodes,
        cards: document.querySelectorAll(".card").length,
        heap: performance.memory.usedJSHeapSize,
    };
}"""
# Settled once the next pair with its pictures is there, and once the server has answered: both in milliseconds from the
# key.
_ARM = """() => {
    const shown = () => {
        const all = document.querySelectorAll(".pair section > p a, .empty[aria-busy=false] p");
        return [...all].map((each) => each.getAttribute("href") ?? each.textContent).join(" ");
    };
    const before = shown();
    window.answered = new Promise((done) => {
        const pressed = () => {
            const begun = performance.now();
            let next = null;
            const look = () => {
                const ready = shown() && shown() !== before;
                const pictures = [...document.querySelectorAll(".pair img")];
                if (ready && pictures.every((each) => each.complete)) next ??= performance.now() - begun;
                const idle = document.querySelector('[aria-label="Last change"]').ariaBusy === "false";
                if (next != null && idle) done([next, performance.now() - begun]);
                else requestAnimationFrame(look);
            };
            requestAnimationFrame(look);
        };
        addEventListener("keydown", pressed, { once: true, capture: true });
    });
}"""

# Settled once the dialog has the photo with so many boxes, in milliseconds from the key.
_ARM_DIALOG = """(boxes) => {
    window.opened = new Promise((done) => {
        const pressed = () => {
            const begun = performance.now();
            const look = () => {
                const dialog = document.querySelector("dialog");
                const there = dialog?.querySelectorAll(".box").length === boxes;
                if (there && dialog.querySelector(".photo img").naturalWidth) done(performance.now() - begun);
                else requestAnimationFrame(look);
            };
            requestAnimationFrame(look);
        };
        addEventListener("keydown", pressed, { once: true, capture: true });
    });
}"""


class Traffic:
    """What crosses the network, as Chromium counts it: requests and bytes of the page's code, its API, its pictures."""

    def __init__(self, page: Page) -> None:
        self.requests: Counter[str] = Counter()
        self.bytes: Counter[str] = Counter()
        self._kinds: dict[str, str] = {}
        session = page.context.new_cdp_session(page)
        session.on("Network.requestWillBeSent", self._sent)
        session.on("Network.loadingFinished", self._finished)
        session.send("Network.enable")

    def _sent(self, event: dict[str, Any]) -> None:
        path = urlsplit(event["request"]["url"]).path
        kind = "code" if not path.startswith("/ui/api/") else "pictures" if "/picture" in path else "api"
        self._kinds[event["requestId"]] = kind
        self.requests[kind] += 1

    def _finished(self, event: dict[str, Any]) -> None:
        self.bytes[self._kinds.get(event["requestId"], "code")] += round(event["encodedDataLength"])

    def figures(self, name: str) -> dict[str, int]:
        counts = (("requests", self.requests), ("bytes", self.bytes))
        return {f"{name}_{what}_{kind}": count for what, by_kind in counts for kind, count in by_kind.items()}


def first_paint(page: Page, address: str, cards: int, selector: str = ".card") -> tuple[float, float]:
    """Seconds from the start of the navigation to the first content, and until the first cards have pictures. On the
    clock of the page: Playwright may be late."""
    script = _WATCH_PICTURES.replace("SELECTOR", selector).replace("WAIT_MS", str(_WAIT_MS))
    page.add_init_script(script.replace("CARDS", str(min(cards, CARDS))))
    page.goto(address)
    painted, pictured = page.evaluate(_FIRST_PAINT)
    return painted / 1000, pictured / 1000


def scroll_through(page: Page, name: str, cards: int) -> tuple[list[float], dict[str, Any], str]:
    """By the wheel, until the last card has its picture. Seconds of each frame, figures, the last card's text."""
    page.mouse.move(400, 500)
    page.evaluate(_RECORD)
    begun = time.monotonic()
    while (last := page.evaluate(_LAST, cards)) is None:
        assert time.monotonic() < begun + _WAIT_MS / 1000, f"card {cards} did not come"
        for _ in range(_STEPS):
            page.mouse.wheel(0, _WHEEL_PX)
            page.wait_for_timeout(_WHEEL_EVERY_MS)
    seconds = time.monotonic() - begun
    assert last["setsize"] == cards
    there = page.evaluate(_RECORDED)
    figures = {
        "scroll_seconds": seconds,
        **frame_figures(there["frames"]),
        "dom_nodes": there["nodes"],
        "dom_nodes_most": there["most"],
        "cards_in_dom": there["cards"],
        "js_heap_bytes": there["heap"],
    }
    named = {f"{name}_{key}": value for key, value in figures.items()}
    return [ms / 1000 for ms in there["frames"]], named, last["text"]


def open_photo(page: Page, faces: int) -> float:
    """Opens the photo of the card that has the focus. Seconds until it is there with so many boxes."""
    page.evaluate(_ARM_DIALOG, faces)
    page.keyboard.press("p")
    return float(page.evaluate("() => window.opened")) / 1000


def go_through(page: Page, keys: int) -> list[float]:
    """Presses an arrow key so often. Milliseconds of each frame meanwhile."""
    page.evaluate(_RECORD)
    for _ in range(keys):
        page.keyboard.press("ArrowRight")
        page.wait_for_timeout(_KEY_EVERY_MS)
    frames: list[float] = page.evaluate(_RECORDED)["frames"]
    return frames


def frame_figures(milliseconds: Sequence[float]) -> dict[str, float]:
    return {
        "frames": len(milliseconds),
        **{f"frame_p{p}_ms": float(np.percentile(milliseconds, p)) for p in (50, 95, 99)},
        "frame_longest_ms": max(milliseconds),
        f"frames_over_{LONG_MS}_ms_share": float(np.mean(np.array(milliseconds) > LONG_MS)),
    }


def press(page: Page, key: str) -> tuple[float, float]:
    """Answers the pair that is shown. Seconds until the next one with its pictures is there, and until the server has
    answered, too."""
    page.evaluate(_ARM)
    page.keyboard.press(key)
    shown, answered = page.evaluate("() => window.answered")
    return shown / 1000, answered / 1000
