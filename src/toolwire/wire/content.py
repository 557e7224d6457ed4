"""Reads the content of messages and results as parts, and the format of the answer's text.

| wire part                         | becomes                                                    |
|-----------------------------------|------------------------------------------------------------|
| text, input_text, output_text     | TextPart                                                   |
| refusal                           | the message's refusal                                      |
| image_url, input_image            | ImagePart; the URL may be a string or in an object         |
| any other (audio, files, unknown) | OtherPart, unchanged, for backends that speak the same API |

An empty text does not become a part.
"""

from __future__ import annotations

from typing import Any

from toolwire.core.turn import Api, ImagePart, OtherPart, OutputFormat, Part, TextPart
from toolwire.wire.checks import (
    TEXT_OR_PARTS,
    Note,
    boolean,
    invalid,
    leftover,
    missing,
    nested,
    not_one_of,
    object_,
    optional,
    required,
    required_name,
    required_string,
    wrong_type,
)

TEXTS = frozenset({"text", "input_text", "output_text"})
IMAGES = frozenset({"image_url", "input_image"})
SCHEMES = ("https://", "http://", "data:")
_OF_TEXT = frozenset({"type", "text"})
_OF_IMAGE_FILE = frozenset({"type", "image_url", "detail", "file_id"})
_OF_IMAGE = _OF_IMAGE_FILE - {"file_id"}  # a URL takes precedence over a file id
_OF_URL = frozenset({"url", "detail"})
_OF_REFUSAL = frozenset({"type", "refusal"})
_OF_FILE = frozenset({"type", "file_id", "file_data", "file_url", "filename"})


def read(value: Any, path: str, notes: list[Note]) -> tuple[tuple[Part, ...], str | None]:
    """Returns the parts and the refusal (None: no refusal) of the content at `path`.

    Adds a note to `notes` for each member that is not read.
    """
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
    return tuple(parts), "".join(refusals) if refusals else None


def read_parts(value: Any, path: str, notes: list[Note]) -> tuple[Part, ...]:
    """Returns the parts of a tool's result. A refusal in the result becomes a text part."""
    parts, refusal = read(value, path, notes)
    return (*parts, TextPart(refusal)) if refusal else parts


def _image(entry: dict[str, Any], path: str) -> ImagePart:
    url, detail = entry.get("image_url"), optional(entry, "detail", path)
    file_id = optional(entry, "file_id", path)
    where = f"{path}.image_url"
    if type(url) is dict:
        detail = optional(url, "detail", where) or detail
        url = required_string(url, "url", where)
        where += ".url"
    elif url is None and file_id is None:
        raise missing(where)
    elif url is not None and type(url) is not str:
        raise wrong_type(where, "one of a string or an object", url)
    if url is not None and not url[:8].lower().startswith(SCHEMES):
        raise invalid(where, "expected a data: URL or a URL that begins with https:// or http://.")
    return ImagePart(url, detail, file_id)


# --- formats ---
#
# OpenAI nests a schema under `json_schema` in chat's `response_format` and writes it flat in `text.format` of
# the Responses API. Both forms are read on both APIs.

TEXT = OutputFormat()
_OF_SCHEMA = frozenset({"type", "name", "schema", "strict", "description"})


def read_format(value: Any, path: str, api: Api, notes: list[Note]) -> OutputFormat:
    """Returns the output format at `path`. Adds a note to `notes` for each member that is not read."""
    object_(path, value)
    kind = required_string(value, "type", path)
    leftover(value, _OF_SCHEMA | {"json_schema"}, path, notes)
    if kind == "text":
        return TEXT
    if kind == "json_object":
        return OutputFormat("json_object")
    if kind != "json_schema":
        raise not_one_of(f"{path}.type", kind, ("text", "json_object", "json_schema"))
    inner, path = nested(value, "json_schema", path, "schema" if api == "chat" else None)
    if inner is not value:
        leftover(inner, _OF_SCHEMA, path, notes)
    name = required_name(inner, path)
    schema = (required if api == "responses" else optional)(inner, "schema", path, object_)
    strict = optional(inner, "strict", path, boolean) is True
    return OutputFormat("json_schema", name, schema, strict, optional(inner, "description", path))


def echo(output: OutputFormat) -> dict[str, Any]:
    """Returns the format as a Responses object repeats it.

    The description is omitted if the client sent no description.
    """
    if output.type != "json_schema":
        return {"type": output.type}
    wire = {"type": "json_schema", "name": output.name, "schema": output.schema, "strict": output.strict}
    return wire if output.description is None else {**wire, "description": output.description}
