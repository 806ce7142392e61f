"""Command lines of engines in golden files: manifests of pods, and the shorter pages beside the examples, where a flag and its value are one item."""

import yaml


def command_lines(paths: list[str], command: list[str]):
    """What follows `command` wherever a container begins with it, with the file it is in."""
    for path in paths:
        with open(path, encoding="utf-8") as file:
            for document in yaml.safe_load_all(file):
                for container in containers(document):
                    words = [word for item in container["command"] + container.get("args", []) for word in split(item)]
                    if words[: len(command)] == command:
                        yield path, words[len(command) :]


def containers(node):
    """Every mapping with a command, at whichever depth."""
    if isinstance(node, dict):
        if isinstance(node.get("command"), list):
            yield node
        node = list(node.values())
    if isinstance(node, list):
        for each in node:
            yield from containers(each)


def split(item: str) -> list[str]:
    """A flag with its value, or one of both."""
    return item.split(" ", 1) if item.startswith("-") else [item]
