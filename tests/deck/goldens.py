"""Frames against goldens that a person has looked at. UPDATE_GOLDENS=1 writes them anew."""

from __future__ import annotations

import difflib
import os
import unicodedata
from collections.abc import Mapping
from pathlib import Path

from flightdeck.frame import Frame

GOLDENS = Path(__file__).parent / "snapshots"


def same_as_goldens(frames: Mapping[str, Frame]) -> None:
    """Every frame's text is that of its golden, and holds nothing of ambiguous or double width and no emoji (D27)."""
    wrong = []
    for name, frame in frames.items():
        text = frame.text + "\n"
        odd = {char for char in text if unicodedata.east_asian_width(char) in ("A", "W", "F") or ord(char) > 0xFFFF}
        assert not odd, f"{name}: {odd}"
        golden = GOLDENS / f"{name}.txt"
        if os.environ.get("UPDATE_GOLDENS"):
            golden.parent.mkdir(exist_ok=True)
            golden.write_text(text)
        was = golden.read_text()
        if was != text:
            wrong += difflib.unified_diff(was.splitlines(), text.splitlines(), name, "now", n=0, lineterm="")
    assert not wrong, "frames look different (UPDATE_GOLDENS=1 when that is right):\n" + "\n".join(wrong)
