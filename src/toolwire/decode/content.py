"""The content of a message or a result → parts.

| wire part                          | becomes                                                              |
|------------------------------------|----------------------------------------------------------------------|
| text, input_text, output_text      | TextPart                                                             |
| refusal                            | the message's refusal                                                |
| image_url, input_image             | ImagePart; the url may stand in a string or in an object             |
| any other (audio, files, unknown)  | OtherPart, as it came: a backend that speaks the same wire passes it on |

An empty string is no part at all, so that a message without content looks the same in all its spellings.
"""

from __future__ import annotations

from typing import Any

from toolwire.decode.fields import TEXT_OR_PARTS, Note, invalid, leftover, missing, object_, optional_string, required_string, wrong_type
from toolwire.turn import ImagePart, OtherPart, Part, TextPart

TEXTS = frozenset({"text", "input_text", "output_text"})
IMAGES = frozenset({"image_url", "input_image"})
SCHEMES = ("https://", "http://", "data:")
_OF_TEXT = frozenset({"type", "text"})
_OF_IMAGE_FILE = frozenset({"type", "image_url", "detail", "file_id"})
_OF_IMAGE = _OF_IMAGE_FILE - {"file_id"}  # a URL holds before a file's id
_OF_URL = frozenset({"url", "detail"})
_OF_REFUSAL = frozenset({"type", "refusal"})
_OF_FILE = frozenset({"type", "file_id", "file_data", "file_url", "filename"})


def read(value: Any, path: str, notes: list[Note]) -> tuple[tuple[Part, ...], str | None]:
    """The parts of a content, and the refusal among them. `path` is the content's own; what is not read is added to `notes`."""
    if type(value) is str:
        return ((TextPart(value),) if value else ()), None
    if type(value) is not list:
        raise missing(path) if value is None else wrong_type(path, TEXT_OR_PARTS, value)
    parts: list[Part] = []
    refusals: list[str] = []
    for i, entry in enumerate(value):
        part = f"{path}[{i}]"
        object_(part, entry)
        kind = required_string(entry, "type", part)
        if kind in TEXTS:
            text = required_string(entry, "text", part)
            leftover(entry, _OF_TEXT, path, notes)
            if text:
                parts.append(TextPart(text))
        elif kind in IMAGES:
            parts.append(_image(entry, part))
            leftover(entry, _OF_IMAGE_FILE if entry.get("image_url") is None else _OF_IMAGE, path, notes)
            if type(entry.get("image_url")) is dict:
                leftover(entry["image_url"], _OF_URL, f"{path}.image_url", notes)
        elif kind == "refusal":
            leftover(entry, _OF_REFUSAL, path, notes)
            refusals.append(required_string(entry, "refusal", part))
        else:
            if kind == "input_file":
                leftover(entry, _OF_FILE, path, notes)
            parts.append(OtherPart(kind, entry))
    return tuple(parts), ("".join(refusals) if refusals else None)


def read_parts(value: Any, path: str, notes: list[Note]) -> tuple[Part, ...]:
    """The parts of a tool's result, where a refusal is just text."""
    parts, refusal = read(value, path, notes)
    return (*parts, TextPart(refusal)) if refusal else parts


def _image(entry: dict[str, Any], path: str) -> ImagePart:
    url, detail = entry.get("image_url"), optional_string(entry, "detail", path)
    file_id = optional_string(entry, "file_id", path)
    where = f"{path}.image_url"
    if type(url) is dict:
        detail = optional_string(url, "detail", where) or detail
        url = required_string(url, "url", where)
        where += ".url"
    elif url is None and file_id is None:
        raise missing(where)
    elif url is not None and type(url) is not str:
        raise wrong_type(where, "one of a string or an object", url)
    if url is not None and not url[:8].lower().startswith(SCHEMES):
        raise invalid(where, "expected a data: URL or a URL that begins with https:// or http://.")
    return ImagePart(url, detail, file_id)
