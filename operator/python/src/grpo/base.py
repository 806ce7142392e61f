"""Base classes of the generated models: how a JSON field gets its Python name, and what becomes of unknown fields."""

from __future__ import annotations

import math
from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict
from pydantic.alias_generators import to_camel

# Names in JSON that are not their attribute's in camel case. generate.py names those that are missing.
IRREGULAR = {"max_ttl": "maxTTL"}


def json_name(attribute: str) -> str:
    """The name in JSON: `reward_mean` is `rewardMean`, and `from_` is `from`, a word that Python keeps for itself."""
    return IRREGULAR.get(attribute) or to_camel(attribute.rstrip("_"))


def _null_is_nan(value: object) -> object:
    # JSON has no word for NaN or infinity, so the plugin writes null.
    return math.nan if value is None else value


Number = Annotated[float, BeforeValidator(_null_is_nan)]
"""A number of a view."""


class Part(BaseModel):
    """Part of an object or of a view."""

    model_config = ConfigDict(
        alias_generator=json_name, populate_by_name=True, use_attribute_docstrings=True, protected_namespaces=()
    )


class Spec(Part):
    """Part of a manifest. An unknown field is refused, and a value of another type, as the API server refuses them."""

    model_config = ConfigDict(extra="forbid", strict=True, validate_assignment=True)


class Status(Part):
    """Part of a status. Unknown fields are kept: a newer operator may write them."""

    model_config = ConfigDict(extra="allow")


class View(Part):
    """Part of a view of records. Unknown fields are ignored: a newer plugin may send them."""

    model_config = ConfigDict(extra="ignore")
