"""A tool of an MCP server, as a tool that runs only with a person's consent.

What the person is shown before a call comes from the settings and from the pinned definition: nothing is sent
to the server. Texts that the server wrote are labelled as its words. The server's hints change no decision.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from copy import copy
from typing import TYPE_CHECKING, Any

import mcp_types as types

from toolwire.core.display import counted, one_line, size
from toolwire.tools.contract import (
    HINTS,
    SAID,
    SERVER,
    TOOL_NAME,
    Arguments,
    Effect,
    Preview,
    Progress,
    Ran,
    ToolFailed,
    server_tool_words,
)
from toolwire.tools.mcp.connection import UpstreamFailed, address
from toolwire.tools.mcp.policy import Policy, Ruling
from toolwire.tools.mcp.schemas import SchemaCheck

if TYPE_CHECKING:
    from toolwire.settings.types import McpServerSettings
    from toolwire.tools.mcp.servers import Server

LONGEST_NAME = 64
MOST_ARGUMENTS = 1_000_000
"""The most characters of a call's arguments, as JSON."""
MOST_RESULT = 100_000
"""The most characters of a result that a model gets."""
RESERVED = "io.modelcontextprotocol/"
"""The prefix of keys in `_meta` that are about one connection, so they are not sent to the client."""
MOST_SAID = 20_000
"""The most characters of a title and description that are stored with a question."""
_PLAIN = re.compile(r"[A-Za-z0-9_-]+")
_HASHED = re.compile(r"_[0-9a-f]{12}$")


def public_name(server: str, tool: str) -> str:
    """Returns the name under which models and clients see a tool: `SERVER__TOOL`.

    No two tools have the same public name, because the name of a server contains no `__`. A hash is added at
    the end if characters must be replaced or cut, or if the end of the name already looks like such a hash.
    """
    name = f"{server}__{tool}"
    if len(name) <= LONGEST_NAME and _PLAIN.fullmatch(name) and not _HASHED.search(name):
        return name
    mark = "_" + hashlib.sha256(f"{server}\0{tool}".encode("utf-8", "surrogatepass")).hexdigest()[:12]
    return re.sub(r"[^A-Za-z0-9_-]", "_", name)[: LONGEST_NAME - len(mark)] + mark


class McpTool:
    """A tool of an MCP server, with the agreed definition. Implements `Tool` and `Ruled`."""

    effect: Effect = "call"

    def __init__(
        self, server: Server, definition: types.Tool, pin: str, policy: Policy, check: SchemaCheck
    ) -> None:
        self._server = server
        self._policy = policy
        self._progress: Progress | None = None
        self.definition = definition
        self.pin = pin
        self.check_schema = check
        self.name = public_name(server.settings.name, definition.name)

    @property
    def settings(self) -> McpServerSettings:
        return self._server.settings

    @property
    def server(self) -> str:
        return self.settings.name

    @property
    def source(self) -> str:
        return self.settings.source

    # --- what is shown ---

    @property
    def title(self) -> str:
        """The names of server and tool. A title that the server chose could imitate Toolwire's own words."""
        return server_tool_words(self.server, one_line(self.definition.name, 80))[0]

    @property
    def purpose(self) -> str:
        return server_tool_words(self.server, one_line(self.definition.name, 80))[1]

    @property
    def description(self) -> str:
        return self.definition.description or ""

    @property
    def _said(self) -> str:
        """The server's words about the tool: title and description."""
        given = self.definition.annotations
        title = self.definition.title or (given.title if given is not None else None) or ""
        said = "\n".join(filter(None, (title, self.description)))
        cut = f"\n[cut: the first {MOST_SAID:,} of {len(said):,} characters]"
        return said if len(said) <= MOST_SAID else said[:MOST_SAID] + cut

    @property
    def parameters(self) -> Mapping[str, Any]:
        return self.definition.input_schema

    async def preview(self, arguments: Arguments) -> Preview:
        return Preview(action="Run", facts=self.facts)

    @property
    def facts(self) -> tuple[tuple[str, str], ...]:
        settings = self.settings
        facts = [
            (SERVER, self.server),
            ("Command" if settings.command else "Address", address(settings)),
            (TOOL_NAME, self.definition.name),
            (SAID, self._said),
            (HINTS, hints(self.definition)),
        ]
        return tuple((label, text) for label, text in facts if text)

    # --- rules ---

    def ruling(self, arguments: Arguments) -> Ruling:
        """Returns what the rules currently say about a call with these arguments."""
        return self._server.policy_now(self._policy).decide(self.definition.name, arguments)

    def check(self, arguments: Arguments) -> None:
        """Raises `ToolFailed` if the arguments are invalid, or if the tool's definition has changed."""
        if reason := self._server.unusable(self):
            raise ToolFailed(f"{self.server}: {reason}")
        if len(json.dumps(dict(arguments))) > MOST_ARGUMENTS:
            raise ToolFailed(f"the arguments are longer than {MOST_ARGUMENTS:,} characters")
        self.check_schema(arguments)

    # --- a call ---

    def reporting(self, progress: Progress) -> McpTool:
        """Returns a copy of the tool that reports the progress of its calls to `progress`."""
        other = copy(self)
        other._progress = progress
        return other

    async def run(self, arguments: Arguments, picked: Sequence[str] | None, shown: Preview) -> Ran:
        shares_all = self.settings.share == "run"
        progress = self._progress if shares_all or self._progress is None else _wordless(self._progress)
        try:
            raw = await self.call(arguments, progress)
        except UpstreamFailed as error:
            if error.error is None or error.may_have_run or shares_all:
                person = f"{error} It said: {error.said}" if error.said else str(error)
                its_own = error.error if shares_all else None
                raise ToolFailed(str(error), person, may_have_run=error.may_have_run, raw=its_own) from None
            raw = types.CallToolResult(content=[types.TextContent(text=str(error))], is_error=True)
        if shares_all:
            return Ran(for_model(raw), raw=raw)
        everything = whole(raw)
        text = _cut(everything)
        if text != everything:
            raw = types.CallToolResult(content=[types.TextContent(text=text)], is_error=raw.is_error)
        reports = " It reports an error." if raw.is_error else ""
        summary = f"The result has {counted(len(everything), 'character')}.{reports}"
        found = Preview(summary=summary, action="Share the result", facts=self.facts[:3], content=text)
        return Ran({}, found=found, raw=raw)

    def share(self, ran: Ran, picked: Sequence[str]) -> Any:
        return for_model(ran.raw)

    async def call(self, arguments: Arguments, progress: Progress | None = None) -> types.CallToolResult:
        """Calls the server. Raises `UpstreamFailed` if the call fails or the definition has changed."""
        connection = await self._server.confirm(self)
        upstream, name = self._server.upstream, self.definition.name
        return await upstream.call(name, arguments, progress=progress, on=connection)


def hints(definition: types.Tool) -> str:
    """Returns the hints of a definition in words. They come from the server and may be wrong."""
    given = definition.annotations
    if given is None:
        return ""
    said = (
        (given.read_only_hint, "only reads"),
        (given.destructive_hint and not given.read_only_hint, "may destroy or overwrite"),
        (given.open_world_hint, "may contact other systems"),
    )
    return ", ".join(words for is_so, words in said if is_so)


def _wordless(progress: Progress) -> Progress:
    """Returns a function that passes reports on to `progress`, without the server's messages.

    These messages could contain a part of the call's result.
    """

    async def report(done: float, total: float | None, message: str | None) -> None:
        await progress(done, total, None)

    return report


# --- results for a model ---


def whole(result: types.CallToolResult) -> str:
    """Returns the whole result as text, for the person who decides about sharing it.

    In place of the data of images, audio and binary resources, the text contains their size.
    """
    parts = [_whole(block) for block in result.content]
    meta = {name: value for name, value in (result.meta or {}).items() if not name.startswith(RESERVED)}
    for title, value in (("structured content", result.structured_content), ("metadata", meta or None)):
        if value is not None:
            parts.append(f"[{title}]\n{json.dumps(value, ensure_ascii=False, indent=2)}")
    return "\n".join(parts)


def _whole(block: types.ContentBlock) -> str:
    if isinstance(block, types.TextContent) and block.annotations is None and not block.meta:
        return block.text
    written = block.model_dump(by_alias=True, mode="json", exclude_none=True)
    resource = written.get("resource") or {}
    for part, name in ((written, "data"), (resource, "blob")):
        if name in part:
            part[name] = f"{size(len(part[name]) * 3 // 4)}: not shown"
    text = resource.pop("text", "")
    return json.dumps(written, ensure_ascii=False, indent=2) + (f"\n{text}" if text else "")


def for_model(result: types.CallToolResult) -> Any:
    """Returns a result for a model: text, with a note in place of other content. Nothing is fetched."""
    texts = [_text(block) for block in result.content]
    if not texts and result.structured_content is not None:
        texts = [json.dumps(result.structured_content, ensure_ascii=False)]
    text = _cut("\n".join(texts))
    return {"is_error": True, "text": text} if result.is_error else text


def _cut(text: str) -> str:
    """Cuts a text to `MOST_RESULT` characters, and adds a note about this if the text was longer."""
    cut = f"\n[cut: the result has {counted(len(text), 'character')}, of which these are the first]"
    return text if len(text) <= MOST_RESULT else text[: MOST_RESULT - len(cut)] + cut


def _text(block: types.ContentBlock) -> str:
    match block:
        case types.TextContent(text=text):
            return text
        case types.ImageContent(mime_type=kind, data=data) | types.AudioContent(mime_type=kind, data=data):
            return f"[{one_line(kind, 80)}, {size(len(data) * 3 // 4)}: not shown]"
        case types.ResourceLink(uri=uri, name=name):
            return f"[a link to the resource {one_line(name, 200)}: {one_line(str(uri), 1000)}]"
        case types.EmbeddedResource(resource=types.TextResourceContents(uri=uri, text=text)):
            return f"[the resource {one_line(str(uri), 1000)}]\n{text}"
        case types.EmbeddedResource(resource=resource):
            return f"[the resource {one_line(str(resource.uri), 1000)}, which is no text: not shown]"
    return f"[{block.type}: not shown]"
