"""Pictures of pages, compared with the last ones that somebody accepted.

A picture is compared in blocks of 8 by 8 pixels: what a font's edge does is not seen, what moved,
went, came or has another colour is. The browser does the comparing, as it can read its own
pictures. What is kept is WebP of half the size, made by the browser, too.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pathlib import Path

    from playwright.sync_api import Page

#: of all blocks, so many may be otherwise
TOLERANCE: Final = 0.01

_COMPARE: Final = """
async ([accepted, current]) => {
  const load = async (url) => {
    const image = new Image();
    image.src = url;
    await image.decode();
    return image;
  };
  const blocks = (image, width, height) => {
    const canvas = document.createElement("canvas");
    canvas.width = width;
    canvas.height = height;
    const context = canvas.getContext("2d");
    context.imageSmoothingQuality = "high";
    context.drawImage(image, 0, 0, width, height);
    return context.getImageData(0, 0, width, height).data;
  };
  const now = await load(current);
  const canvas = document.createElement("canvas");
  canvas.width = now.width;
  canvas.height = now.height;
  const context = canvas.getContext("2d");
  context.drawImage(now, 0, 0);
  const half = document.createElement("canvas");
  half.width = Math.round(now.width / 2);
  half.height = Math.round(now.height / 2);
  const small = half.getContext("2d");
  small.imageSmoothingQuality = "high";
  small.drawImage(now, 0, 0, half.width, half.height);
  const kept = half.toDataURL("image/webp", 0.8);
  if (!accepted) return { kept, otherwise: 1, marked: null, size: [now.width, now.height] };
  const before = await load(accepted);
  const size = [before.width, before.height, now.width, now.height];
  if (before.width !== half.width || Math.abs(before.height - half.height) > 4)
    return { kept, otherwise: 1, marked: null, size };
  const width = Math.ceil(now.width / 8);
  const height = Math.ceil(now.height / 8);
  const [one, other] = [blocks(before, width, height), blocks(now, width, height)];
  let differing = 0;
  context.fillStyle = "rgba(255, 0, 80, 0.45)";
  for (let at = 0; at < one.length; at += 4) {
    const far = (channel) => Math.abs(one[at + channel] - other[at + channel]);
    if (Math.max(far(0), far(1), far(2)) <= 28) continue;
    differing += 1;
    const block = at / 4;
    context.fillRect((block % width) * 8, Math.floor(block / width) * 8, 8, 8);
  }
  const marked = canvas.toDataURL("image/webp", 0.8);
  return { kept, otherwise: differing / (width * height), marked, size };
}
"""


@dataclass(frozen=True)
class Compared:
    """What came of it."""

    #: part of the blocks that are otherwise; 1.0 for a picture of another size, or the first one
    otherwise: float
    #: the picture as it is kept
    kept: bytes
    #: the picture with what is otherwise marked; None for one of another size
    marked: bytes | None

    @property
    def is_the_same(self) -> bool:
        return self.otherwise <= TOLERANCE


def compare(page: Page, accepted: bytes | None, current_png: bytes) -> Compared:
    """Compare in *page*, any that is open."""
    found: dict[str, Any] = page.evaluate(
        _COMPARE,
        [
            None if accepted is None else _url("image/webp", accepted),
            _url("image/png", current_png),
        ],
    )
    marked = found["marked"]
    return Compared(
        found["otherwise"], _bytes(found["kept"]), None if marked is None else _bytes(marked)
    )


def accept(path: Path, compared: Compared) -> None:
    """Keep a picture as the one to compare the next with."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(compared.kept)


def _url(kind: str, content: bytes) -> str:
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"


def _bytes(url: str) -> bytes:
    return base64.b64decode(url.partition(",")[2])
