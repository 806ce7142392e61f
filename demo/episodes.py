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
import struct
import sys


def token_rows(file: pathlib.Path) -> list[list[int]]:
    """The token ids of every row of a rows.safetensors: eight bytes of length, a JSON header, the tensors."""
    content = file.read_bytes()
    (length,) = struct.unpack_from("<Q", content)
    header = json.loads(content[8 : 8 + length])
    count = len(json.loads(header["__metadata__"]["grpo"])["rows"])
    rows = []
    for row in range(count):
        begin, end = header[f"rows.{row}.tokens"]["data_offsets"]
        rows.append(list(struct.unpack_from(f"<{(end - begin) // 4}I", content, 8 + length + begin)))
    return rows


def turns(folder: pathlib.Path) -> list[list[list[int]]]:
    """Prompt, sampled and observation ids of each turn. A prompt belongs to the turn that opens a row."""
    record = folder / "traj.json"
    if not record.exists():
        live = [json.loads(file.read_text()) for file in sorted(folder.glob("turns/*.json"))]
        return [[turn.get(field, []) for field in ("prompt", "sampled", "observation")] for turn in live]
    told = json.loads(record.read_text())["turns"]
    rows = token_rows(folder / "rows.safetensors") if told else []
    found, opened = [], set()
    for turn in told:
        ids, prompt = rows[turn["row"]], turn["promptLength"]
        sampled = prompt + turn["sampledLength"]
        opens = turn["row"] not in opened
        opened.add(turn["row"])
        found.append([ids[:prompt] if opens else [], ids[prompt:sampled], ids[sampled : sampled + turn["observationLength"]]])
    return found


def line(store: pathlib.Path, folder: pathlib.Path) -> str:
    digests = [hashlib.sha256(json.dumps(turn).encode()).hexdigest()[:12] for turn in turns(folder)]
    return " ".join([folder.relative_to(store).as_posix(), *digests])


def lines(store: pathlib.Path) -> list[str]:
    folders = {file.parent for file in store.glob("**/rows.safetensors")}
    folders |= {file.parent.parent for file in store.glob("**/turns/*.json")}
    if not folders:
        sys.exit(f"{store} holds no episodes; give the folder that `make demo` copies the run's store to (out/demo/store)")
    return [line(store, folder) for folder in sorted(folders)]


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
