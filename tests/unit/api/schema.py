"""A JSON Schema check for the keywords that our OpenAPI document uses. A keyword it does not know is a failure, so that
nothing is passed by being overlooked."""

from __future__ import annotations

from typing import Any

_NOTES = {"title", "description", "default"}
_TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "object": (dict,),
    "array": (list,),
    "null": (type(None),),
}


def errors(value: Any, schema: dict[str, Any], document: dict[str, Any], at: str = "$") -> list[str]:
    """What is wrong with `value`, each with its place."""
    if "$ref" in schema:
        assert set(schema) <= {"$ref", *_NOTES}, schema
        return errors(value, _target(schema["$ref"], document), document, at)
    found: list[str] = []
    for keyword, rule in schema.items():
        if keyword not in _NOTES:
            found += _RULES[keyword](value, rule, schema, document, at)
    return found


def _target(ref: str, document: dict[str, Any]) -> dict[str, Any]:
    here: Any = document
    for part in ref.removeprefix("#/").split("/"):
        here = here[part]
    assert isinstance(here, dict)
    return here


def _type(value: Any, rule: str, schema: dict[str, Any], document: dict[str, Any], at: str) -> list[str]:
    fits = isinstance(value, _TYPES[rule]) and (rule == "boolean" or not isinstance(value, bool))
    return [] if fits else [f"{at}: {value!r} is no {rule}"]


def _any_of(value: Any, rule: list[Any], schema: dict[str, Any], document: dict[str, Any], at: str) -> list[str]:
    tried = [errors(value, option, document, at) for option in rule]
    return [] if any(not wrong for wrong in tried) else [f"{at}: none fits: {tried}"]


def _properties(
    value: Any, rule: dict[str, Any], schema: dict[str, Any], document: dict[str, Any], at: str
) -> list[str]:
    if not isinstance(value, dict):
        return []
    return [
        wrong
        for name, inner in rule.items()
        if name in value
        for wrong in errors(value[name], inner, document, f"{at}.{name}")
    ]


def _required(value: Any, rule: list[str], schema: dict[str, Any], document: dict[str, Any], at: str) -> list[str]:
    return [f"{at}: {name} is missing" for name in rule if isinstance(value, dict) and name not in value]


def _additional(value: Any, rule: Any, schema: dict[str, Any], document: dict[str, Any], at: str) -> list[str]:
    extra = [name for name in value if name not in schema.get("properties", {})] if isinstance(value, dict) else []
    if rule is True:
        return []
    if rule is False:
        return [f"{at}: {name} is not in the document" for name in extra]
    return [wrong for name in extra for wrong in errors(value[name], rule, document, f"{at}.{name}")]


def _items(value: Any, rule: dict[str, Any], schema: dict[str, Any], document: dict[str, Any], at: str) -> list[str]:
    if not isinstance(value, list):
        return []
    return [wrong for index, item in enumerate(value) for wrong in errors(item, rule, document, f"{at}[{index}]")]


def _check(test: Any, what: str) -> Any:
    def rule(value: Any, rule: Any, schema: dict[str, Any], document: dict[str, Any], at: str) -> list[str]:
        return [] if value is None or test(value, rule) else [f"{at}: {value!r} is not {what} {rule!r}"]

    return rule


_RULES: dict[str, Any] = {
    "type": _type,
    "anyOf": _any_of,
    "properties": _properties,
    "required": _required,
    "additionalProperties": _additional,
    "items": _items,
    "enum": _check(lambda value, rule: value in rule, "one of"),
    "const": _check(lambda value, rule: value == rule, "the constant"),
    "minimum": _check(lambda value, rule: value >= rule, "at least"),
    "exclusiveMinimum": _check(lambda value, rule: value > rule, "more than"),
    "maximum": _check(lambda value, rule: value <= rule, "at most"),
    "minLength": _check(lambda value, rule: len(value) >= rule, "of length at least"),
    "maxLength": _check(lambda value, rule: len(value) <= rule, "of length at most"),
    "minItems": _check(lambda value, rule: len(value) >= rule, "of length at least"),
    "maxItems": _check(lambda value, rule: len(value) <= rule, "of length at most"),
}
