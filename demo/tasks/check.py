"""Owns the quick recheck of built tasks: `check.py CACHE [COUNT]` proves some again and tries forgeries in them.

It also checks what holds between rows: splits share no package, reserved kinds are held out, images are in the layout.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from pathlib import Path

import candidates
import verify


def main() -> None:
    cache, count = Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 4
    rows = {s: [json.loads(x) for x in (cache / f"rows/{s}.jsonl").read_text().splitlines()] for s in candidates.WANTED}
    wrong = between(cache, rows)
    some = [row for split in rows.values() for row in split]
    for row in some[:: max(1, len(some) // count)][:count]:
        layers = [cache / "layers" / p for p in (f"tasks/{row['instance_id']}", row["package"], "base")]
        first, last = row["lines"]
        excerpt = (layers[0] / "testbed" / row["file"]).read_text().split("\n")[first - 1 : last]
        started = time.monotonic()
        found = verify.check(row, layers, excerpt) or verify.forge(row, layers)
        print(f"{row['instance_id']}: {found or 'good'} ({time.monotonic() - started:.1f} s)")
        wrong += [found] if found else []
    sys.exit("\n".join(wrong) if wrong else 0)


def between(cache: Path, rows: dict[str, list[dict]]) -> list[str]:
    wrong = []
    packages = {s: {r["package"] for r in rs} for s, rs in rows.items()}
    for one, other in (("train", "validation"), ("train", "heldout"), ("validation", "heldout")):
        if packages[one] & packages[other]:
            wrong.append(f"{one} and {other} share {packages[one] & packages[other]}")
    for split in ("train", "validation"):
        if candidates.RESERVED & {r["bug_kind"] for r in rows[split]}:
            wrong.append(f"{split} has a reserved kind of bug")
    if not candidates.RESERVED & {r["bug_kind"] for r in rows["heldout"]}:
        wrong.append("no held-out task has a reserved kind of bug")
    names = {m["annotations"]["io.containerd.image.name"] for m in json.loads((cache / "oci/index.json").read_text())["manifests"]}
    for row in (r for rs in rows.values() for r in rs):
        if row["image"] not in names:
            wrong.append(f"{row['instance_id']} has no image")
        if not re.fullmatch(r"[a-z0-9]+(?:(?:\.|__?|-+)[a-z0-9]+)*", row["instance_id"]):
            wrong.append(f"{row['instance_id']} is no image name")
    ids = [r["instance_id"] for rs in rows.values() for r in rs]
    if len(ids) != len(set(ids)):
        wrong.append("an instance id repeats")
    for manifest in json.loads((cache / "oci/index.json").read_text())["manifests"]:
        blob = cache / "oci/blobs/sha256" / manifest["digest"][7:]
        if subprocess.run(["sha256sum", blob], capture_output=True, text=True).stdout[:64] != blob.name:
            wrong.append(f"{blob} is not what it is called")
    return wrong


if __name__ == "__main__":
    main()
