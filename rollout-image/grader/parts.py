"""What the functions of all formats use: faults of rows, reading of fields, images, the frame of evaluation scripts."""

from __future__ import annotations

import json

END = ": '>>>>> End Test Output'"
START = ": '>>>>> Start Test Output'"
HEAD = ["#!/bin/bash", "set -uxo pipefail"]
# A patch that the row's own text cannot end.
DELIMITER = "EOF_114329324912"


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


def test_lists(row: dict) -> dict:
    lists = {}
    for field in ("FAIL_TO_PASS", "PASS_TO_PASS"):
        lists[field] = structure(row, field)
        if not isinstance(lists[field], list) or not all(isinstance(test, str) for test in lists[field]):
            raise RowFault(field, "not a list of test names")
    return lists


def commands_of(value, field: str) -> list[str]:
    """Commands of a row: one text, or a list of texts. Empty ones do not count."""
    listed = [value] if isinstance(value, str) else value
    if not isinstance(listed, list) or not all(isinstance(command, str) for command in listed):
        raise RowFault(field, "neither a command nor a list of commands" if value else "missing")
    commands = [command for command in listed if command.strip()]
    if not commands:
        raise RowFault(field, "no command in it")
    return commands


def image_of(row: dict, rule: str) -> str:
    """The row's own image wins."""
    for field in ("image", "image_name", "docker_image"):
        if isinstance(row.get(field), str) and row[field]:
            return row[field]
    return rule


def image_by_instance(namespace: str, row: dict, separator: str) -> str:
    name = text(row, "instance_id").lower().replace("__", separator)
    return f"docker.io/{namespace}/sweb.eval.x86_64.{name}:latest"


def test_patch_of(row: dict) -> str:
    """The test patch, without its last newline: a here-document adds one."""
    patch = text(row, "test_patch")
    if DELIMITER in patch:
        raise RowFault("test_patch", f"has the text {DELIMITER}")
    return patch.removesuffix("\n")


def script(commands: list[str]) -> str:
    return "\n".join([*HEAD, *commands]) + "\n"
