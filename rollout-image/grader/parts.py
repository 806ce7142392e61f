"""What the functions of all formats use: faults of rows, reading of fields, the frame of an evaluation script."""

from __future__ import annotations

import json

END = ": '>>>>> End Test Output'"
START = ": '>>>>> Start Test Output'"
HEAD = ["#!/bin/bash", "set -uxo pipefail"]


class RowFault(Exception):
    """A row that cannot be graded, and the field that is to blame."""

    def __init__(self, field: str, message: str):
        super().__init__(message)
        self.field = field


def text(row: dict, field: str) -> str:
    value = row.get(field)
    if not value:
        raise RowFault(field, "missing or empty")
    if not isinstance(value, str):
        raise RowFault(field, "not a text")
    return value


def structure(row: dict, field: str):
    """A list or an object; parquet files often have it as JSON in a text."""
    value = row.get(field)
    if isinstance(value, (list, dict)):
        return value
    if not isinstance(value, str):
        raise RowFault(field, "missing" if not value else "neither a list nor an object")
    try:
        return json.loads(value)
    except ValueError as error:
        raise RowFault(field, f"not JSON: {error}") from error


def script(commands: list[str]) -> str:
    return "\n".join([*HEAD, *commands]) + "\n"
