"""A client's JSON schema made finite, in the keywords that grammars keep.

- Sound: every instance of the bounded schema is an instance of the client's own. What a grammar can not say is said more narrowly (`uniqueItems`: one
  item; `if`: its `then` branch; open objects: the properties that are named). `not` beyond a list of values, a pattern that looks around, what
  `listed` does not judge, and several items that must differ without being listed are left to the check of the complete call.
- Finite: strings, arrays, free-form objects, digits and recursion end by `Limits`, whatever the model would like to write.
- Whatever a client sends is taken: keywords of the wrong type, broken references and schemas without an instance never raise.

Pure; standard library only.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import unquote

from toolwire.emulate.schemas.keywords import ABOUT, Schema, identity, is_a, join, own, reference, references, values
from toolwire.emulate.schemas.values import KEY, LARGEST, Numbers, distinct, is_judged, kept, key_pattern, portable_pattern, rust_pattern


@dataclass(frozen=True, slots=True)
class Limits:
    """`string`: characters; `items` of an array; `keys` of a free-form object; `depth`: how often a schema may lead back to itself."""

    string: int = 512
    items: int = 8
    keys: int = 8
    depth: int = 3


DEFAULT = Limits()
MOST_NODES = 4000
DEEPEST = 48
_PLACE = re.compile(r"[0-9]{1,9}\Z")  # in a list, as a pointer names it

# Formats that llguidance knows, and how long they may get; 0: they end by themselves. And a pattern for one that it does not know.
FORMATS = {"date": 0, "ipv4": 0, "ipv6": 0, "uuid": 0, "time": 18, "date-time": 32, "duration": 24, "email": 48, "hostname": 48}
FORMAT_PATTERNS = {"uri": "^https?://[a-z0-9]{1,20}([.][a-z0-9]{1,20}){1,3}(/[A-Za-z0-9_.-]{0,30}){0,4}$"}


def bounded(schema: Mapping[str, Any], limits: Limits = DEFAULT, *, portable: bool = True) -> Schema:
    """A schema whose instances are finite, and instances of `schema`. One that has none becomes any object.

    `portable`: in keywords that most engines know; else in those of llguidance.
    """
    return _Bounding(schema, limits, portable).whole(schema) or _anything(limits, portable)


def arguments_schema(parameters: Mapping[str, Any], limits: Limits = DEFAULT, *, portable: bool = True) -> Schema:
    """The bounded schema of a tool's arguments: always an object."""
    asked = {"allOf": [parameters, {"type": "object"}]}
    return _Bounding(parameters, limits, portable).whole(asked) or _anything(limits, portable)


def is_held(parameters: Mapping[str, Any]) -> bool:
    """Whether the bounded arguments are instances of these parameters; else they may be more, or nothing but an object can be asked for."""
    bounding = _Bounding(parameters, DEFAULT, True)
    return bounding.whole({"allOf": [parameters, {"type": "object"}]}) is not None and bounding.sound


def _anything(limits: Limits, portable: bool) -> Schema:
    return _Bounding({}, limits, portable).whole({"type": "object"}) or {"type": "object"}


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a schema stands: inside which definition, how often that led back to itself, how deep."""

    definition: str = "#"
    level: int = 0
    depth: int = 0


class _Bounding:
    """One schema on its way. None stands for a schema without instances."""

    def __init__(self, root: Mapping[str, Any], limits: Limits, portable: bool) -> None:
        self._root = root
        self._limits = limits
        self._portable = portable
        self.sound = True
        """False: not all that `exact` takes for kept is kept."""
        self._nodes = 0
        self._definitions: Schema = {}
        self._names: dict[tuple[str, int], str | None] = {}
        self._reached: dict[str, frozenset[str]] = {}

    def whole(self, schema: Mapping[str, Any]) -> Schema | None:
        found = self.value(schema, _Place())
        return {**found, "$defs": self._definitions} if found is not None and self._definitions else found

    def value(self, schema: Any, place: _Place) -> Schema | None:
        self._nodes += 1
        if schema is False or self._nodes > MOST_NODES or place.depth > DEEPEST:
            return None
        target = reference(schema)
        if target is not None:
            return self._refer(target, place)
        flat = self._flat(schema, place)
        if flat is None:
            return None
        keywords, place = flat
        groups = keywords.pop("groups", None)
        if groups:
            rest = [{"anyOf": group} for group in groups[1:]]
            base = [keywords] if keywords else []
            return _any_of([self.value({"allOf": [*base, option, *rest]}, place) for option in groups[0]])
        types = keywords.get("type") or [next((type for type, about in ABOUT.items() if not keywords.keys().isdisjoint(about)), "")]
        if "enum" in keywords:
            return self._enum(keywords, types)
        return _any_of([self._typed(type, keywords, place) for type in types])

    # --- references ----------------------------------------------------------------------------------------------------------------------------

    def _refer(self, target: str, place: _Place) -> Schema | None:
        """A definition becomes one of ours, once for every time it may lead back to itself."""
        level = self._level(target, place)
        if level > self._limits.depth:
            return None
        key = (target, level)
        if key not in self._names:
            self._names[key] = None
            found = self.value(self._resolve(target), _Place(target, level, place.depth + 1))
            if found is not None:
                self._names[key] = name = f"d{len(self._definitions)}"
                self._definitions[name] = found
        return {"$ref": f"#/$defs/{self._names[key]}"} if self._names[key] else None

    def _level(self, target: str, place: _Place) -> int:
        back = target == place.definition or place.definition in self._reach(target)
        return place.level + 1 if back else 0

    def _reach(self, target: str) -> frozenset[str]:
        """The definitions that this one leads to, by any number of steps."""
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
        """What a pointer leads to; anything, where it leads nowhere."""
        found: Any = self._root
        if not target.startswith("#"):
            return True
        for step in filter(None, unquote(target[1:]).split("/")):
            step = step.replace("~1", "/").replace("~0", "~")
            if isinstance(found, Mapping) and step in found:
                found = found[step]
            elif isinstance(found, list) and _PLACE.match(step) and int(step) < len(found):
                found = found[int(step)]
            else:
                return True
        return found

    # --- joining -------------------------------------------------------------------------------------------------------------------------------

    def _flat(self, schema: Any, place: _Place) -> tuple[Schema, _Place] | None:
        """The keywords that hold together, with references and `allOf` taken in; choices are left as `groups`."""
        self._nodes += 1
        if schema is False or self._nodes > MOST_NODES:
            return None
        if not isinstance(schema, Mapping):
            return {}, place
        keywords = own(schema)
        parts = list(schema["allOf"]) if isinstance(schema.get("allOf"), list) else []
        if "if" in schema:
            parts += [schema["if"], schema.get("then", True)]
        if isinstance(schema.get("$ref"), str):
            level = self._level(schema["$ref"], place)
            if level > self._limits.depth:
                return None
            place = replace(place, definition=schema["$ref"], level=level, depth=place.depth + 1)
            parts.append(self._resolve(schema["$ref"]))
        for part in parts:
            flat = self._flat(part, place)
            if flat is None:
                return None
            joined = join(keywords, flat[0])
            if joined is None:
                return None
            keywords, place = joined, flat[1]
        return keywords, place

    # --- types ---------------------------------------------------------------------------------------------------------------------------------

    def _typed(self, type: str, keywords: Schema, place: _Place) -> Schema | None:
        inner = replace(place, depth=place.depth + 1)
        if type == "object":
            return self._object(keywords, inner)
        if type == "array":
            return self._array(keywords, inner)
        if type == "string":
            return self._string(keywords)
        if type in ("number", "integer"):
            return Numbers(keywords).whole() if type == "integer" else Numbers(keywords).any(self._portable)
        return {"type": type} if type else self._free(1)

    def _free(self, deep: int) -> Schema | None:
        """Any value: a scalar, or a few of them."""
        scalars = [self._string({}), Numbers({}).any(self._portable), {"type": "boolean"}, {"type": "null"}]
        if not deep:
            return _any_of(scalars)
        inner = self._free(deep - 1)
        return _any_of([*scalars, {"type": "array", "items": inner, "maxItems": self._limits.items}, self._map(inner, 0, self._limits.keys)])

    def _enum(self, keywords: Schema, types: list[str]) -> Schema | None:
        refused = set(map(identity, values(keywords.get("not"))))
        typed = [one for one in keywords["enum"] if "type" not in keywords or any(is_a(one, type) for type in types)]
        left = kept([one for one in typed if not refused or identity(one) not in refused], keywords)
        self.sound = self.sound and is_judged(left, keywords)
        return {"enum": left} if left else None

    def _string(self, keywords: Schema) -> Schema | None:
        fewest = max(0, math.ceil(keywords.get("minLength", 0)))
        most = math.floor(keywords.get("maxLength", math.inf)) if "maxLength" in keywords else None
        if most is not None and fewest > most:
            return None
        form = keywords.get("format", "")
        clipped = max(self._limits.string, fewest)
        out: Schema = {"type": "string"}
        pattern = keywords.get("pattern") or (FORMAT_PATTERNS.get(form) if not fewest and most is None else None)
        told = (portable_pattern if self._portable else rust_pattern)(pattern) if pattern else None
        if told is not None:
            out["pattern"] = told
        elif form in FORMATS:
            out["format"] = form
            clipped = max(FORMATS[form] or self._limits.string, fewest)
            if not FORMATS[form] and not self._portable:
                return out
        if fewest:
            out["minLength"] = fewest
        out["maxLength"] = clipped if most is None else min(most, clipped)
        return out

    def _array(self, keywords: Schema, place: _Place) -> Schema | None:
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
            first = self.value(one, place)
            if first is None:
                most = min(most, len(firsts))
                break
            firsts.append(first)
        inner = self.value(given, place) if most > len(firsts) else None
        if inner is None:
            most = min(most, len(firsts))
        if fewest > most:
            return None
        if keywords.get("uniqueItems") and fewest > 1:
            dealt = _shared_out(inner, fewest) if inner is not None and not firsts else []
            firsts, self.sound = dealt or firsts, self.sound and bool(dealt)
        most = min(most, max(self._limits.items, fewest, len(firsts)))
        out: Schema = {"type": "array", "items": inner if inner is not None else False, "maxItems": most}
        if fewest:
            out["minItems"] = fewest
        if firsts:
            out["prefixItems"] = firsts
        return out if inner is not None or firsts else {"type": "array", "items": {"type": "null"}, "maxItems": 0}

    def _object(self, keywords: Schema, place: _Place) -> Schema | None:
        extra = keywords.get("additionalProperties", True)
        properties = dict(keywords.get("properties", {}))
        required = list(dict.fromkeys(name for name in keywords.get("required", ()) if isinstance(name, str)))
        names = keywords.get("propertyNames")
        if not properties and isinstance(names, Mapping) and extra is not False:
            properties = {name: extra for name in values(names) if isinstance(name, str)}
        properties.update({name: extra for name in required if name not in properties})
        fewest = max(0, math.ceil(keywords.get("minProperties", 0)))
        most = math.floor(min(keywords.get("maxProperties", LARGEST), LARGEST))
        if not properties and not ("properties" in keywords and "additionalProperties" not in keywords and not fewest):
            return self._open(keywords, extra, fewest, most, place)
        kept: Schema = {}
        for name, one in properties.items():
            found = self.value(one, place)
            if found is not None:
                kept[name] = found
            elif name in required:
                return None
        required += [name for name in kept if name not in required][: max(0, fewest - len(required))]
        optional = [name for name in kept if name not in required][: max(0, most - len(required))]
        if not fewest <= len(required) <= most:
            return None
        kept = {name: one for name, one in kept.items() if name in required or name in optional}
        return {"type": "object", "properties": kept, "required": required, "additionalProperties": False}

    def _open(self, keywords: Schema, extra: Any, fewest: int, most: int, place: _Place) -> Schema | None:
        """An object whose keys are the model's to choose."""
        patterns = {key_pattern(pattern): one for pattern, one in keywords.get("patternProperties", {}).items()}
        named = (
            key_pattern(names["pattern"])
            if isinstance(names := keywords.get("propertyNames"), Mapping) and isinstance(names.get("pattern"), str)
            else None
        )
        pattern = next((one for one in patterns if one), None) or named or KEY
        inner = self.value(patterns.get(pattern, False if patterns and extra is False else extra), place)
        if extra is True and pattern not in patterns:
            inner = self._free(1 if place.depth <= 2 else 0)
        if inner is None:
            return None if fewest else {"type": "object", "properties": {}, "required": [], "additionalProperties": False}
        most = min(most, max(self._limits.keys, fewest))
        return self._map(inner, fewest, most, pattern) if fewest <= most else None

    def _map(self, inner: Schema | None, fewest: int, most: int, pattern: str = KEY) -> Schema:
        out: Schema = {"type": "object", "additionalProperties": inner, "maxProperties": most}
        if not self._portable:
            out |= {"patternProperties": {pattern: inner}, "additionalProperties": False}
        return {**out, "minProperties": fewest} if fewest else out


def _any_of(options: list[Schema | None]) -> Schema | None:
    kept = [one for one in options if one is not None]
    return None if not kept else kept[0] if len(kept) == 1 else {"anyOf": kept}


def _shared_out(inner: Schema, count: int) -> list[Schema]:
    """Listed values, dealt to so many places, so that no two places can hold the same."""
    listed = distinct(inner.get("enum", ()))
    return [{"enum": listed[place::count]} for place in range(count)] if len(listed) >= count else []
