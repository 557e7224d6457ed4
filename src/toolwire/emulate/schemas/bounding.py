"""Narrows a client's JSON schema to one that decoders enforce and whose values are finite.

- Sound: every value of the narrowed schema is valid for the client's schema. Where a grammar cannot express a
  keyword, the narrowed schema allows fewer values. For `uniqueItems`, it allows one item, or as many as
  `minItems` requires; for `if`, only the `then` branch; for open objects, only the named properties. A few
  keywords are exceptions, such as patterns with lookaround, and a `not` that does not list values. Only the
  check of the complete call covers these.
- Finite: strings, arrays, free-form objects, digits and recursion end at `SchemaLimits`.
- Any input is accepted: keywords of the wrong type, broken references and unsatisfiable schemas never raise.

llguidance enforces `type`, `enum`, `const`, `$ref`, `anyOf`, `allOf`, bounds, patterns and formats itself,
but sets no bounds of its own. It ignores or refuses `oneOf`, `not`, `if`, `uniqueItems`, `contains`,
`propertyNames`, `dependentRequired`, broken references and keywords of the wrong type. Other engines do less.
So all engines get the same narrowed schema, apart from a few keywords (`portable`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import unquote

from toolwire.emulate.schemas.keywords import (
    ABOUT,
    KEY,
    LARGEST,
    Numbers,
    Schema,
    bounds_suffice,
    distinct,
    identity,
    is_a,
    join,
    key_pattern,
    listed_values,
    normalized,
    portable_pattern,
    references,
    rust_pattern,
    sole_reference,
    within_bounds,
)


@dataclass(frozen=True, slots=True)
class SchemaLimits:
    """Maximum sizes for values whose schema sets no maximum."""

    string: int = 512
    """The maximum number of characters of a string."""
    items: int = 8
    """The maximum number of items of an array."""
    keys: int = 8
    """The maximum number of keys of a free-form object."""
    depth: int = 3
    """The maximum number of times that a schema may refer back to itself."""


DEFAULT = SchemaLimits()
MOST_NODES = 4000
DEEPEST = 48
_ARRAY_INDEX = re.compile(r"[0-9]{1,9}\Z")  # an array index in a JSON pointer

# Formats that llguidance knows, with a maximum length; 0 if the format itself limits the length.
FORMATS = {
    **dict.fromkeys(("date", "ipv4", "ipv6", "uuid"), 0),
    **{"time": 18, "date-time": 32, "duration": 24, "email": 48, "hostname": 48},
}
# A pattern for a format that the llguidance of llama.cpp does not know.
FORMAT_PATTERNS = {"uri": "^https?://[a-z0-9]{1,20}([.][a-z0-9]{1,20}){1,3}(/[A-Za-z0-9_.-]{0,30}){0,4}$"}


def bounded(schema: Mapping[str, Any], limits: SchemaLimits = DEFAULT, *, portable: bool = True) -> Schema:
    """Returns a schema whose values are finite and valid for `schema`.

    If `schema` has no valid value, returns the schema of any object. `portable`: use only keywords that most
    engines know; if False, use the keywords of llguidance.
    """
    return _Bounding(schema, limits, portable).whole(schema) or _anything(limits, portable)


def arguments_schema(
    parameters: Mapping[str, Any], limits: SchemaLimits = DEFAULT, *, portable: bool = True
) -> Schema:
    """Returns the bounded schema of a tool's arguments, which are always an object."""
    asked = {"allOf": [parameters, {"type": "object"}]}
    return _Bounding(parameters, limits, portable).whole(asked) or _anything(limits, portable)


def is_held(parameters: Mapping[str, Any]) -> bool:
    """Whether all values of the bounded schema are valid arguments, so that calls need no check."""
    bounding = _Bounding(parameters, DEFAULT, True)
    return bounding.whole({"allOf": [parameters, {"type": "object"}]}) is not None and bounding.sound


def _anything(limits: SchemaLimits, portable: bool) -> Schema:
    return _Bounding({}, limits, portable).whole({"type": "object"}) or {"type": "object"}


@dataclass(frozen=True, slots=True)
class _Scope:
    """The position of a subschema.

    `definition`: the definition that contains it. `level`: how often that definition has referred back to
    itself. `depth`: how deep the subschema is nested.
    """

    definition: str = "#"
    level: int = 0
    depth: int = 0


class _Bounding:
    """Narrows one schema. Methods return None for a schema without a valid value."""

    def __init__(self, root: Mapping[str, Any], limits: SchemaLimits, portable: bool) -> None:
        self._root = root
        self._limits = limits
        self._portable = portable
        self.sound = True
        """False if a keyword was dropped that `constrain.exact` counts as enforced."""
        self._nodes = 0
        self._definitions: Schema = {}
        self._names: dict[tuple[str, int], str | None] = {}
        self._reached: dict[str, frozenset[str]] = {}

    def whole(self, schema: Mapping[str, Any]) -> Schema | None:
        found = self.value(schema, _Scope())
        return {**found, "$defs": self._definitions} if found is not None and self._definitions else found

    def value(self, schema: Any, scope: _Scope) -> Schema | None:
        self._nodes += 1
        if schema is False or self._nodes > MOST_NODES or scope.depth > DEEPEST:
            return None
        target = sole_reference(schema)
        if target is not None:
            return self._refer(target, scope)
        flat = self._flat(schema, scope)
        if flat is None:
            return None
        keywords, scope = flat
        groups = keywords.pop("groups", None)
        if groups:
            rest = [{"anyOf": group} for group in groups[1:]]
            base = [keywords] if keywords else []
            return _any_of([self.value({"allOf": [*base, option, *rest]}, scope) for option in groups[0]])
        about = (type for type, words in ABOUT.items() if not keywords.keys().isdisjoint(words))
        types = keywords.get("type") or [next(about, "")]
        if "enum" in keywords:
            return self._enum(keywords, types)
        return _any_of([self._typed(type, keywords, scope) for type in types])

    # --- references ---

    def _refer(self, target: str, scope: _Scope) -> Schema | None:
        """Returns a reference to a narrowed copy of the definition; None if no value is valid.

        Each level of recursion has its own copy.
        """
        level = self._level(target, scope)
        if level > self._limits.depth:
            return None
        key = (target, level)
        if key not in self._names:
            self._names[key] = None
            found = self.value(self._resolve(target), _Scope(target, level, scope.depth + 1))
            if found is not None:
                self._names[key] = name = f"d{len(self._definitions)}"
                self._definitions[name] = found
        return {"$ref": f"#/$defs/{self._names[key]}"} if self._names[key] else None

    def _level(self, target: str, scope: _Scope) -> int:
        back = target == scope.definition or scope.definition in self._reach(target)
        return scope.level + 1 if back else 0

    def _reach(self, target: str) -> frozenset[str]:
        """Returns the definitions to which this definition refers, directly or through others."""
        if target not in self._reached:
            seen: set[str] = set()
            waiting = [target]
            while waiting:
                for found in references(self._resolve(waiting.pop())):
                    if found not in seen:
                        seen.add(found)
                        waiting.append(found)
            self._reached[target] = frozenset(seen)
        return self._reached[target]

    def _resolve(self, target: str) -> Any:
        """Returns the schema at a JSON pointer; True (any value) if the pointer leads nowhere."""
        found: Any = self._root
        if not target.startswith("#"):
            return True
        for step in filter(None, unquote(target[1:]).split("/")):
            step = step.replace("~1", "/").replace("~0", "~")
            if isinstance(found, Mapping) and step in found:
                found = found[step]
            elif isinstance(found, list) and _ARRAY_INDEX.match(step) and int(step) < len(found):
                found = found[int(step)]
            else:
                return True
        return found

    # --- joining ---

    def _flat(self, schema: Any, scope: _Scope) -> tuple[Schema, _Scope] | None:
        """Joins the keywords of a schema with those of its `$ref`, `allOf` and `if`.

        Returns the keywords, with choices in `groups`, and the new scope; None if no value is valid.
        """
        self._nodes += 1
        if schema is False or self._nodes > MOST_NODES:
            return None
        if not isinstance(schema, Mapping):
            return {}, scope
        keywords = normalized(schema)
        parts = list(schema["allOf"]) if isinstance(schema.get("allOf"), list) else []
        if "if" in schema:
            parts += [schema["if"], schema.get("then", True)]
        if isinstance(schema.get("$ref"), str):
            level = self._level(schema["$ref"], scope)
            if level > self._limits.depth:
                return None
            scope = replace(scope, definition=schema["$ref"], level=level, depth=scope.depth + 1)
            parts.append(self._resolve(schema["$ref"]))
        for part in parts:
            flat = self._flat(part, scope)
            if flat is None:
                return None
            joined = join(keywords, flat[0])
            if joined is None:
                return None
            keywords, scope = joined, flat[1]
        return keywords, scope

    # --- types ---

    def _typed(self, type: str, keywords: Schema, scope: _Scope) -> Schema | None:
        inner = replace(scope, depth=scope.depth + 1)
        if type == "object":
            return self._object(keywords, inner)
        if type == "array":
            return self._array(keywords, inner)
        if type == "string":
            return self._string(keywords)
        if type == "integer":
            return Numbers(keywords).as_integer()
        if type == "number":
            return Numbers(keywords).as_number(self._portable)
        return {"type": type} if type else self._any_value(1)

    def _any_value(self, deep: int) -> Schema | None:
        """Returns the schema of any value: a scalar, or an array or object of scalars.

        `deep`: how many levels of arrays and objects to allow.
        """
        number = Numbers({}).as_number(self._portable)
        options = [self._string({}), number, {"type": "boolean"}, {"type": "null"}]
        if deep:
            inner = self._any_value(deep - 1)
            options.append({"type": "array", "items": inner, "maxItems": self._limits.items})
            options.append(self._map(inner, 0, self._limits.keys))
        return _any_of(options)

    def _enum(self, keywords: Schema, types: list[str]) -> Schema | None:
        refused = set(map(identity, listed_values(keywords.get("not"))))
        listed = keywords["enum"]
        if "type" in keywords:
            listed = [one for one in listed if any(is_a(one, type) for type in types)]
        left = within_bounds([one for one in listed if identity(one) not in refused], keywords)
        self.sound = self.sound and bounds_suffice(left, keywords)
        return {"enum": left} if left else None

    def _string(self, keywords: Schema) -> Schema | None:
        fewest = max(0, math.ceil(keywords.get("minLength", 0)))
        most = math.floor(keywords.get("maxLength", math.inf)) if "maxLength" in keywords else None
        if most is not None and fewest > most:
            return None
        form = keywords.get("format", "")
        clipped = max(self._limits.string, fewest)
        out: Schema = {"type": "string"}
        unbounded = not fewest and most is None
        pattern = keywords.get("pattern") or (FORMAT_PATTERNS.get(form) if unbounded else None)
        written = (portable_pattern if self._portable else rust_pattern)(pattern) if pattern else None
        if written is not None:
            out["pattern"] = written
        elif form in FORMATS:
            out["format"] = form
            clipped = max(FORMATS[form] or self._limits.string, fewest)
            if not FORMATS[form] and not self._portable:
                return out
        if fewest:
            out["minLength"] = fewest
        out["maxLength"] = clipped if most is None else min(most, clipped)
        return out

    def _array(self, keywords: Schema, scope: _Scope) -> Schema | None:
        given = keywords.get("items", True)
        before = list(keywords.get("prefixItems", ()))
        if isinstance(keywords.get("contains"), Mapping) and not before:
            before = [{"allOf": [keywords["contains"], given]}]
        fewest = max(0, math.ceil(keywords.get("minItems", 0)), 1 if "contains" in keywords else 0)
        most = math.floor(min(keywords.get("maxItems", LARGEST), LARGEST))
        if keywords.get("uniqueItems"):
            most = min(most, max(1, fewest))
        firsts: list[Schema] = []
        for one in before:
            first = self.value(one, scope)
            if first is None:
                most = min(most, len(firsts))
                break
            firsts.append(first)
        inner = self.value(given, scope) if most > len(firsts) else None
        if inner is None:
            most = min(most, len(firsts))
        if fewest > most:
            return None
        if keywords.get("uniqueItems") and fewest > 1:
            dealt = _divide_enum(inner, fewest) if inner is not None and not firsts else []
            firsts, self.sound = dealt or firsts, self.sound and bool(dealt)
        most = min(most, max(self._limits.items, fewest, len(firsts)))
        out: Schema = {"type": "array", "items": inner if inner is not None else False, "maxItems": most}
        if fewest:
            out["minItems"] = fewest
        if firsts:
            out["prefixItems"] = firsts
        empty = {"type": "array", "items": {"type": "null"}, "maxItems": 0}
        return empty if inner is None and not firsts else out

    def _object(self, keywords: Schema, scope: _Scope) -> Schema | None:
        extra = keywords.get("additionalProperties", True)
        properties = dict(keywords.get("properties", {}))
        required = list(dict.fromkeys(name for name in keywords.get("required", ()) if isinstance(name, str)))
        names = keywords.get("propertyNames")
        if not properties and isinstance(names, Mapping) and extra is not False:
            properties = {name: extra for name in listed_values(names) if isinstance(name, str)}
        properties.update({name: extra for name in required if name not in properties})
        fewest = max(0, math.ceil(keywords.get("minProperties", 0)))
        most = math.floor(min(keywords.get("maxProperties", LARGEST), LARGEST))
        none_named = "properties" in keywords and "additionalProperties" not in keywords and not fewest
        if not properties and not none_named:
            return self._free_keys(keywords, extra, fewest, most, scope)
        kept: Schema = {}
        for name, one in properties.items():
            found = self.value(one, scope)
            if found is not None:
                kept[name] = found
            elif name in required:
                return None
        required += [name for name in kept if name not in required][: max(0, fewest - len(required))]
        optional = [name for name in kept if name not in required][: max(0, most - len(required))]
        if not fewest <= len(required) <= most:
            return None
        kept = {name: one for name, one in kept.items() if name in required or name in optional}
        return closed_object(kept, required)

    def _free_keys(
        self, keywords: Schema, extra: Any, fewest: int, most: int, scope: _Scope
    ) -> Schema | None:
        """Returns the schema of an object whose keys the model chooses.

        `extra`: the schema of its values. `fewest` and `most`: how many keys it has.
        """
        given = keywords.get("patternProperties", {})
        patterns = {key_pattern(pattern): one for pattern, one in given.items()}
        names = keywords.get("propertyNames")
        name = names.get("pattern") if isinstance(names, Mapping) else None
        named = key_pattern(name) if isinstance(name, str) else None
        pattern = next(filter(None, patterns), None) or named or KEY
        inner = self.value(patterns.get(pattern, False if patterns and extra is False else extra), scope)
        if extra is True and pattern not in patterns:
            inner = self._any_value(1 if scope.depth <= 2 else 0)
        if inner is None:
            return None if fewest else closed_object({})
        most = min(most, max(self._limits.keys, fewest))
        return self._map(inner, fewest, most, pattern) if fewest <= most else None

    def _map(self, inner: Schema | None, fewest: int, most: int, pattern: str = KEY) -> Schema:
        out: Schema = {"type": "object", "additionalProperties": inner, "maxProperties": most}
        if not self._portable:
            out |= {"patternProperties": {pattern: inner}, "additionalProperties": False}
        return {**out, "minProperties": fewest} if fewest else out


def closed_object(properties: Schema, required: list[str] | None = None) -> Schema:
    """Returns the schema of an object with these properties and no others.

    `required`: the names of the required properties; None means all.
    """
    needed = list(properties) if required is None else required
    return {"type": "object", "properties": properties, "required": needed, "additionalProperties": False}


def _any_of(options: list[Schema | None]) -> Schema | None:
    kept = [one for one in options if one is not None]
    return None if not kept else kept[0] if len(kept) == 1 else {"anyOf": kept}


def _divide_enum(inner: Schema, count: int) -> list[Schema]:
    """Divides the values of an enum among `count` items, so that no item can repeat another.

    Returns one schema per item; empty if there are too few values.
    """
    listed = distinct(inner.get("enum", ()))
    return [{"enum": listed[start::count]} for start in range(count)] if len(listed) >= count else []
