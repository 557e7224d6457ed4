"""Reads the tools of a request, in every shape that clients send, and the tool choice.

| wire tool                                     | becomes                                                  |
|-----------------------------------------------|----------------------------------------------------------|
| function, nested (chat) or flat (Responses)   | ToolSpec, on both APIs                                   |
| custom, nested or flat                        | ToolSpec of kind `custom`; its grammar in the flat shape |
| namespace                                     | its tools, each a ToolSpec with the namespace set        |
| mcp (Responses)                               | McpServer, whose tools the gateway lists and calls       |
| hosted (web_search, …) and unknown types      | skipped, with a note                                     |
| legacy `functions`                            | ToolSpec; ignored with a note if `tools` are also sent   |

Two tools with the same name are refused. But if one of them is in a namespace, the first one counts, and the
second one is skipped with a note. A tool choice that forces a hosted tool counts as `auto`, with a note. A
tool choice is refused if it names an undeclared tool, or if it requires a call and there is no tool to call.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, cast

from toolwire.core.errors import ToolwireError
from toolwire.core.mcp import McpServer
from toolwire.core.turn import Api, ToolChoice, ToolSpec
from toolwire.wire.checks import (
    Note,
    array,
    boolean,
    empty,
    invalid,
    leftover,
    nested,
    not_one_of,
    object_,
    one_of,
    optional,
    required,
    required_name,
    required_string,
    shown,
    wrong_type,
)
from toolwire.wire.responses import mcp

Choice = tuple[ToolChoice, Any]
"""A tool choice, and its form in a Responses object. If this form is None, the object has the default."""

HOSTED = frozenset(
    "apply_patch code_interpreter computer computer_use computer_use_preview file_search image_generation "
    "local_shell mcp programmatic_tool_calling shell tool_search web_search web_search_2025_08_26 "
    "web_search_preview web_search_preview_2025_03_11".split()
)
REDACTED = "<redacted>"
"""The text that tools for capturing requests write in place of a value.

It is accepted as a `tool_choice`, so that captured requests can be replayed.
"""
OF_FUNCTION = frozenset({"type", "function", "name", "description", "parameters", "strict"})
OF_CUSTOM = frozenset({"type", "custom", "name", "description", "format"})
OF_NAMESPACE = frozenset({"type", "name", "tools"})
"""The members of a namespace that are read. Any other member gets a note."""
MODES = ("none", "auto", "required")
CALLABLE = ("function", "custom")
NOTHING = ToolChoice("none")
ANYTHING = ToolChoice("auto")


class RequestTools:
    """The tools of one request.

    Call `read` or `read_legacy` first, then `choose` or `choose_legacy`.
    """

    def __init__(self, api: Api) -> None:
        self._flat = "name" if api == "chat" else None  # the member that a flat tool or choice must have
        self.servers: dict[str, McpServer] = {}
        """The MCP servers by label."""
        self.chosen: list[tuple[str, str | None]] = []
        """For each choice of an MCP server: its label, and the name of its tool (None: all its tools)."""
        self._specs: dict[str, ToolSpec] = {}
        self.echo: list[Any] = []
        self.notes: list[Note] = []
        self._skipped: set[str] = set()  # types of skipped tools

    @property
    def specs(self) -> tuple[ToolSpec, ...]:
        return tuple(self._specs.values())

    # --- declarations ---

    def read(self, tools: Any) -> None:
        array("tools", tools)
        for i, tool in enumerate(tools):
            path = f"tools[{i}]"
            object_(path, tool)
            kind = required_string(tool, "type", path)
            if kind in CALLABLE:
                spec, wire = self._callable(kind, tool, path)
                self._declare(spec, f"{path}.{kind}.name" if type(tool.get(kind)) is dict else f"{path}.name")
                self.echo.append(wire)
            elif kind == "namespace":
                self._namespace(tool, path)
                self.echo.append(tool)
            elif kind == "mcp" and self._flat is None:
                self._server(tool, path)
                self.echo.append(mcp.echo(tool))
            else:
                self._skip("tools", kind)
                self.echo.append(tool)

    def read_legacy(self, functions: Any) -> None:
        array("functions", functions)
        for i, function in enumerate(functions):
            path = f"functions[{i}]"
            object_(path, function)
            self._declare(_function(function, path), f"{path}.name")
            leftover(function, OF_FUNCTION, "functions", self.notes)

    def _callable(
        self, kind: str, tool: dict[str, Any], path: str, namespace: str | None = None
    ) -> tuple[ToolSpec, dict[str, Any]]:
        """Returns a function or custom tool, and its flat form for `echo`."""
        inner, path = nested(tool, kind, path, self._flat if namespace is None else None)
        read = OF_CUSTOM if kind == "custom" else OF_FUNCTION
        leftover(tool, read, "tools", self.notes)
        leftover(inner, read, "tools", self.notes)
        if kind == "custom":
            spec = _custom(inner, path, namespace)
            wire = tool if inner is tool else {"type": "custom", **inner}
            return spec, wire if spec.format is None else {**wire, "format": spec.format}
        spec = _function(inner, path, namespace)
        wire = {"type": "function", "name": spec.name, "description": inner.get("description")}
        return spec, {**wire, "parameters": spec.parameters, "strict": spec.strict}

    def _server(self, tool: dict[str, Any], path: str) -> None:
        server = mcp.read_server(tool, path, self.notes)
        if server is None:
            self._skip("tools", "mcp")
        elif self.servers.setdefault(server.label, server) is not server:
            reason = f"duplicate label '{shown(server.label)}'. Each MCP server needs a unique label."
            raise invalid(f"{path}.server_label", reason)

    def _namespace(self, tool: dict[str, Any], path: str) -> None:
        name = required_name(tool, path)
        optional(tool, "description", path)
        leftover(tool, OF_NAMESPACE, "tools.namespace", self.notes)
        for i, entry in enumerate(required(tool, "tools", path, array)):
            inside = f"{path}.tools[{i}]"
            object_(inside, entry)
            kind = required_string(entry, "type", inside)
            if kind in CALLABLE:
                self._declare(self._callable(kind, entry, inside, name)[0], f"{inside}.name")
            else:
                self._skip("tools", kind)

    def _declare(self, spec: ToolSpec, path: str) -> None:
        first = self._specs.setdefault(spec.name, spec)
        if first is spec:
            return
        if first.namespace is None and spec.namespace is None:
            raise invalid(path, f"duplicate name '{shown(spec.name)}'. Each tool needs a unique name.")
        self._note("tools.namespace", "ignored:duplicate_name")

    def _skip(self, field: str, kind: str) -> None:
        self._skipped.add(kind)
        self._note(f"{field}.{kind if kind in HOSTED else 'unknown'}", "ignored")

    def _note(self, field: str, disposition: str) -> None:
        if (field, disposition) not in self.notes:
            self.notes.append((field, disposition))

    # --- tool choice ---

    def choose(self, choice: Any) -> Choice:
        default = ANYTHING if self._specs or self.servers else NOTHING
        if choice is None:
            return default, None
        if choice == REDACTED:
            self._note("tool_choice", "ignored:redacted")
            return default, None
        if type(choice) is str:
            if choice not in MODES:
                raise not_one_of("tool_choice", choice, MODES)
            if choice == "auto":
                return default, choice
            if choice == "required":
                self._need_tools("tool_choice")
            return ToolChoice(cast(Literal["none", "required"], choice)), choice
        if type(choice) is not dict:
            raise wrong_type("tool_choice", "one of a string or an object", choice)
        kind = required_string(choice, "type", "tool_choice")
        if kind in CALLABLE:
            name = self._declared(kind, choice, "tool_choice")
            return ToolChoice("required", name), {"type": kind, "name": name}
        if kind == "allowed_tools":
            return self._allowed(choice)
        if kind == "mcp" and self.servers:
            self._choose_server(choice, "tool_choice")
            return ToolChoice("required"), choice
        if kind in HOSTED or kind in self._skipped:
            self._note("tool_choice", "ignored:hosted_tool")
            return default, choice
        raise not_one_of("tool_choice.type", kind, (*CALLABLE, "allowed_tools"))

    def choose_legacy(self, choice: Any) -> ToolChoice:
        """Reads `function_call`: `none`, `auto`, or an object with the name of a function."""
        if type(choice) is dict:
            name = required_string(choice, "name", "function_call")
            return ToolChoice("required", self._known(name, "function", "function_call.name"))
        if type(choice) is not str:
            raise wrong_type("function_call", "one of a string or an object", choice)
        if choice not in ("none", "auto"):
            raise not_one_of("function_call", choice, ("none", "auto"))
        return ANYTHING if choice == "auto" and self._specs else NOTHING

    def _allowed(self, choice: dict[str, Any]) -> Choice:
        """Reads a choice of type `allowed_tools`."""
        inner, path = nested(choice, "allowed_tools", "tool_choice", "tools" if self._flat else None)
        mode: Literal["auto", "required"] = required(inner, "mode", path, one_of("auto", "required"))
        tools = required(inner, "tools", path, array)
        if not tools:
            raise empty(f"{path}.tools", "array")
        names: dict[str, str] = {}
        for i, entry in enumerate(tools):
            where = f"{path}.tools[{i}]"
            object_(where, entry)
            kind = required_string(entry, "type", where)
            if kind in CALLABLE:
                names[self._declared(kind, entry, where)] = kind
            elif kind == "mcp" and self.servers:
                self._choose_server(entry, where)
            else:
                self._skip("tool_choice", kind)
        echo = {"type": "allowed_tools", "mode": mode, "tools": tools}
        if names or self.chosen:
            of_servers = [entry for entry in tools if entry["type"] == "mcp" and self.servers]
            echo["tools"] = [*({"type": kind, "name": name} for name, kind in names.items()), *of_servers]
            return ToolChoice(mode, None, tuple(names)), echo
        if mode == "required":
            reason = "a call is required, but this server can offer none of the allowed tools."
            raise invalid(f"{path}.tools", reason)
        return NOTHING, echo

    def _choose_server(self, entry: dict[str, Any], path: str) -> None:
        label = required_string(entry, "server_label", path)
        if label not in self.servers:
            message = f"Tool choice '{shown(label)}' not found in 'tools' parameter."
            raise ToolwireError("invalid_value", message, param=f"{path}.server_label")
        self.chosen.append((label, optional(entry, "name", path)))

    def _declared(self, kind: str, entry: dict[str, Any], path: str) -> str:
        """Returns the tool name in a tool choice. Raises an error if no such tool is declared."""
        inner, path = nested(entry, kind, path, self._flat)
        return self._known(required_string(inner, "name", path), kind, f"{path}.name")

    def _known(self, name: str, kind: str, path: str) -> str:
        """Returns the name if a tool of this name and kind is declared; otherwise raises an error."""
        self._need_tools(path)
        spec = self._specs.get(name)
        if spec is None or spec.kind != kind:
            message = f"Tool choice '{shown(name)}' not found in 'tools' parameter."
            raise ToolwireError("invalid_value", message, param=path)
        return name

    def _need_tools(self, path: str) -> None:
        if not self._specs and not self.servers:
            reason = "to require a call, declare at least one tool in 'tools' that this server can offer."
            raise invalid(path, reason)


# --- single tools ---


def _function(tool: Mapping[str, Any], path: str, namespace: str | None = None) -> ToolSpec:
    name = required_name(tool, path)
    description = optional(tool, "description", path) or ""
    parameters = optional(tool, "parameters", path, object_) or {}
    strict = optional(tool, "strict", path, boolean) is True
    return ToolSpec(name, description, parameters, strict, namespace=namespace)


def _custom(tool: Mapping[str, Any], path: str, namespace: str | None) -> ToolSpec:
    name = required_name(tool, path)
    description = optional(tool, "description", path) or ""
    shape, path = optional(tool, "format", path, object_), f"{path}.format"
    if shape is not None and required(shape, "type", path, one_of("text", "grammar")) == "grammar":
        inner, path = nested(shape, "grammar", path, None)
        syntax = required(inner, "syntax", path, one_of("lark", "regex"))
        definition = required_string(inner, "definition", path)
        shape = {"type": "grammar", "syntax": syntax, "definition": definition}
    return ToolSpec(name, description, kind="custom", format=shape, namespace=namespace)
