"""Texts, images and files → the library's content. What a provider can not take is refused by name, never dropped. Pure."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import unquote_to_bytes

from pydantic_ai.messages import BinaryContent, ImageUrl

from toolwire.backends.hosted.providers import Provider
from toolwire.errors import ToolwireError
from toolwire.turn import ImagePart, OtherPart, Part, TextPart

Content = str | BinaryContent | ImageUrl


def contents(parts: Iterable[Part], provider: Provider) -> list[Content]:
    """The parts that say something: empty texts are nothing, and some providers refuse them."""
    out: list[Content] = []
    for part in parts:
        if isinstance(part, TextPart):
            if part.text.strip():
                out.append(part.text)
        elif isinstance(part, ImagePart):
            out.append(_image(part, provider))
        else:
            out.append(_other(part, provider))
    return out


def _image(part: ImagePart, provider: Provider) -> Content:
    if part.url is None:
        raise ToolwireError("unsupported_value", "Images that live at another provider can not be sent to this model; send the image itself.")
    if part.url.startswith("data:"):
        return inline(part.url)
    if not provider.image_urls:
        raise ToolwireError("unsupported_value", "This model takes images only inline.")
    return ImageUrl(part.url)


def inline(url: str) -> BinaryContent:
    """The content of a data: URL."""
    head, comma, data = url.removeprefix("data:").partition(",")
    media_type, *parameters = head.split(";")
    try:
        raw = base64.b64decode(data, validate=True) if "base64" in parameters else unquote_to_bytes(data)
    except (binascii.Error, ValueError):
        raw = b""
    if not comma or not raw or "/" not in media_type:
        raise ToolwireError("invalid_value", "A data: URL is not as it should be: data:MEDIA/TYPE;base64,DATA.")
    return BinaryContent(raw, media_type=media_type.strip().lower())


def _other(part: OtherPart, provider: Provider) -> Content:
    raw = part.raw
    held = raw.get("file") if isinstance(raw.get("file"), Mapping) else raw  # chat keeps it in `file`, Responses beside the type
    data = held.get("file_data") if isinstance(held, Mapping) else None
    if part.kind in ("file", "input_file") and isinstance(data, str):
        return inline(data if data.startswith("data:") else f"data:application/pdf;base64,{data}")
    if part.kind == "input_audio" and provider.audio:
        audio = raw.get("input_audio")
        if isinstance(audio, Mapping):
            return inline(f"data:audio/{audio.get('format', 'wav')};base64,{audio.get('data', '')}")
    raise ToolwireError("unsupported_value", f"This model does not take content of type {_kind(part)!r} as it was sent.")


def _kind(part: OtherPart) -> str:
    return "".join(letter for letter in part.kind if letter.isalnum() or letter == "_")[:40]


def result(parts: Iterable[Part], provider: Provider) -> Any:
    """A tool result: its text, or a list where there is more than text."""
    found = contents(parts, provider)
    if all(isinstance(item, str) for item in found):
        text = "\n".join(item for item in found if isinstance(item, str))
        return [] if not text and provider.empty_results else text
    return found
