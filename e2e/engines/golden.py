"""Command lines of engines in golden files: manifests of pods, and the shorter pages beside the examples, where a flag and its value are one item."""

import os
import sys

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


def run(golden: str, program: str, folder: str, port: str) -> None:
    """Becomes the engine of a golden file: its command line and environment, but for what a pod has of its own: volumes, an address, a port."""
    with open(golden, encoding="utf-8") as file:
        found = (container for document in yaml.safe_load_all(file) for container in containers(document))
        container = next(container for container in found if container["command"] == ["vllm", "serve"])
    here = {"/model-cache": f"{folder}/cache", "/model": f"{folder}/model", "/tmp": f"{folder}/tmp", "$(POD_IP)": "127.0.0.1"}
    os.makedirs(here["/tmp"], exist_ok=True)

    def moved(value: str) -> str:
        place = next((place for place in here if value == place or value.startswith(f"{place}/")), "")
        return here.get(place, "") + value.removeprefix(place)

    arguments = [moved(argument) for argument in container["args"]]
    arguments[arguments.index("--port") + 1] = port
    told = {each["name"]: moved(each["value"]) for each in container["env"] if "value" in each}
    os.execve(program, [program, "serve", *arguments], os.environ | told)


if __name__ == "__main__":
    run(*sys.argv[1:])
