"""YAML as kubectl reads it. PyYAML alone reads YAML 1.1, in which `1e-6` is a text and `1:30` is 90."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import yaml

from grpo.errors import ManifestError

INTEGER = re.compile(r"[-+]?(?:0|[1-9][0-9]*|0o[0-7]+|0x[0-9a-fA-F]+)")
FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
NOT_FINITE = re.compile(r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)")
TRUE = re.compile(r"true|True|TRUE")
FALSE = re.compile(r"false|False|FALSE")
NULL = re.compile(r"~|null|Null|NULL|")
# Some readers take them for booleans.
OLD_BOOLEAN = re.compile(r"[yYnN]|yes|Yes|YES|no|No|NO|on|On|ON|off|Off|OFF")

PLAIN = {
    "tag:yaml.org,2002:null": NULL,
    "tag:yaml.org,2002:bool": re.compile(f"{TRUE.pattern}|{FALSE.pattern}"),
    "tag:yaml.org,2002:int": INTEGER,
    "tag:yaml.org,2002:float": re.compile(f"{FLOAT.pattern}|{NOT_FINITE.pattern}"),
}


class _Loader(yaml.SafeLoader):
    """YAML 1.2's core schema, and an error for a field that is written twice."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        known: set[object] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if key.value in known:
                    raise yaml.constructor.ConstructorError(
                        None, None, f"the field {key.value} is written twice", key.start_mark
                    )
                known.add(key.value)
        return super().construct_mapping(node, deep)


class _Dumper(yaml.SafeDumper):
    """Quotes all texts that a reader of YAML 1.1 or 1.2 could take for another value, and writes lines as lines."""

    # A list of its own: the parent's would be changed.
    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {
        key: list(value) for key, value in yaml.SafeDumper.yaml_implicit_resolvers.items()
    }

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _represent_str(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


def _integer(loader: yaml.SafeLoader, node: yaml.ScalarNode) -> int:
    text = str(loader.construct_scalar(node))
    return int(text, 0) if "x" in text or "o" in text else int(text)


def _float(loader: yaml.SafeLoader, node: yaml.ScalarNode) -> float:
    text = str(loader.construct_scalar(node)).lower()
    return float(text.replace(".inf", "inf").replace(".nan", "nan"))


def _boolean(loader: yaml.SafeLoader, node: yaml.ScalarNode) -> bool:
    return TRUE.fullmatch(str(loader.construct_scalar(node))) is not None


for _tag, _pattern in PLAIN.items():
    _whole = re.compile(f"(?:{_pattern.pattern})$")
    _Loader.add_implicit_resolver(_tag, _whole, None)
    _Dumper.add_implicit_resolver(_tag, _whole, None)
_Dumper.add_implicit_resolver("tag:yaml.org,2002:bool", re.compile(f"(?:{OLD_BOOLEAN.pattern})$"), list("yYnNoO"))
_Loader.add_constructor("tag:yaml.org,2002:int", _integer)
_Loader.add_constructor("tag:yaml.org,2002:float", _float)
_Loader.add_constructor("tag:yaml.org,2002:bool", _boolean)
_Dumper.add_representer(str, _represent_str)


def read(text: str, place: str) -> list[Any]:
    """The documents of a text. Empty ones are left out."""
    try:
        return [document for document in yaml.load_all(text, Loader=_Loader) if document is not None]
    except yaml.YAMLError as error:
        raise ManifestError(f"{place} is no YAML: {error}; correct the line") from error


def write(values: Iterable[Any]) -> str:
    """Values as documents of one text."""
    return yaml.dump_all(
        list(values), Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120, explicit_start=False
    )
