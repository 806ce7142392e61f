#!/usr/bin/env python3
"""Every episode of a run's store as one line: its folder, and for each turn a digest of its prompt, sampled and observation ids.

    episodes.py STORE                   prints the lines
    episodes.py STORE --against FILE    compares them with FILE, and fails where they differ

The demo samples the same tokens from the same seeds and observations. So a change that must not touch what is sampled is
checked by `make demo` and then this; demo/episodes.txt was recorded at commit e095906. One thing is the machine's: tests that
depend on time (pydash's throttle is one) may end otherwise under load. Then one episode differs in an observation, and all
that was sampled from later weights differs with it: look at the first folder that is listed."""
import argparse
import hashlib
import json
import pathlib
import sys


def turn(file: pathlib.Path) -> str:
    record = json.loads(file.read_text())
    ids = [record.get(field, []) for field in ("prompt", "sampled", "observation")]
    return hashlib.sha256(json.dumps(ids).encode()).hexdigest()[:12]


def lines(store: pathlib.Path) -> list[str]:
    folders = sorted({file.parent.parent for file in store.glob("**/turns/*.json")})
    if not folders:
        sys.exit(f"{store} holds no episodes; give the folder that `make demo` copies the run's store to (out/demo/store)")
    return [
        " ".join([folder.relative_to(store).as_posix(), *map(turn, sorted(folder.glob("turns/*.json")))])
        for folder in folders
    ]


def order(folder: str) -> tuple[bool, str]:
    """Iterations before evaluations of what they led to."""
    return not folder.startswith("rollouts/"), folder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("store", type=pathlib.Path)
    parser.add_argument("--against", type=pathlib.Path)
    arguments = parser.parse_args()
    found = lines(arguments.store)
    if arguments.against is None:
        print("\n".join(found))
        return
    recorded = arguments.against.read_text().splitlines()
    by_folder = {line.split(" ")[0]: line for line in found}
    differ = [line.split(" ")[0] for line in recorded if by_folder.get(line.split(" ")[0]) != line]
    new = sorted(set(by_folder) - {line.split(" ")[0] for line in recorded})
    turns = sum(len(line.split(" ")) - 1 for line in recorded)
    print(f"{len(recorded)} episodes of {turns} turns are recorded: {len(differ)} differ, {len(new)} are new")
    for folder in sorted(differ + new, key=order)[:10]:
        print(f"  {folder}")
    sys.exit(1 if differ or new else 0)


if __name__ == "__main__":
    main()
