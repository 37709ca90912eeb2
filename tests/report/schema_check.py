"""Checks values against the part of JSON Schema that the published schemas use."""

from __future__ import annotations

import json
from typing import Any

from dist_testing.core.ground.record import SCHEMA_FILE

_TYPES: dict[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "null": (type(None),),
}


def check(value: Any, schema: dict[str, Any], place: str) -> None:
    """Check a value against the part of JSON Schema that our schemas use. Unknown fields are errors here."""
    if schema == {"$ref": SCHEMA_FILE.name}:
        schema = json.loads(SCHEMA_FILE.read_text(encoding="utf-8"))
    unknown = schema.keys() - {
        *("$schema", "title", "description", "type", "required", "properties", "additionalProperties", "items", "enum"),
        *("const", "default", "prefixItems"),
    }
    assert not unknown, f"{place}: the test does not know {unknown}"
    kinds = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    fits = any(isinstance(value, _TYPES[kind]) and (kind == "boolean" or type(value) is not bool) for kind in kinds)
    assert fits, f"{place}: {value!r} is not {kinds}"
    assert "enum" not in schema or value in schema["enum"], f"{place}: {value!r}"
    assert "const" not in schema or value == schema["const"], f"{place}: {value!r}"
    if isinstance(value, dict):
        properties = schema.get("properties", {})
        assert not set(schema.get("required", ())) - value.keys(), place
        for name, item in value.items():
            assert name in properties or "additionalProperties" in schema, f"{place}.{name} is not in the schema"
            check(item, properties.get(name) or schema["additionalProperties"], f"{place}.{name}")
    if isinstance(value, list):
        parts = schema.get("prefixItems", [])
        assert not parts or len(parts) == len(value), f"{place} has {len(value)} items"
        for number, item in enumerate(value):
            check(item, parts[number] if parts else schema["items"], f"{place}[{number}]")
