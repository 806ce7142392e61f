"""Owns the making of the demo's tasks: finds them, writes rows and the OCI layout, and keeps only what verify.py proves.

Writes to --out: oci/ (the layout), rows/{train,validation,heldout}.jsonl, layers/ (what check.py mounts), report.json.
"""

from __future__ import annotations

import argparse
import collections
import json
import shutil
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import candidates
import flips
import oci
import packages
import rows
import verify

HERE = Path(__file__).resolve().parent
MODEL = HERE.parent / "model"
STDLIB = Path("/usr/lib/python3.11")
sys.path.insert(0, str(MODEL))
import demonstrations  # noqa: E402

MODEL_FILES = ["config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors"]


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--sdists", type=Path, required=True)
    arguments.add_argument("--base", type=Path, required=True, help="root file system as mmdebstrap writes it")
    arguments.add_argument("--wheels", type=Path, nargs="+", required=True, help="what the warm start saw, which tasks must not repeat")
    arguments.add_argument("--out", type=Path, required=True)
    arguments.add_argument("--model-only", action="store_true", help="put the model's files into a layout already there")
    options = arguments.parse_args()
    out, started = options.out, time.monotonic()
    if options.model_only:
        layout = oci.Layout(out / "oci", keep=True)
        model_image(layout, out)
        layout.finish()
        return

    def say(text: str) -> None:
        print(f"{time.monotonic() - started:6.1f}s  {text}", file=sys.stderr, flush=True)

    layers = out / "layers"
    shutil.rmtree(layers, ignore_errors=True)
    packages.unpack(options.sdists, out / "unpacked")
    base_tar = out / "base.tar"
    base_tar.write_bytes(oci.base_layer(options.base))
    verify.extract(base_tar, layers / "base")
    say("base and packages unpacked")

    found = collections.defaultdict(list)
    for package in packages.PACKAGES:
        tests = packages.lay_out(package, out / "unpacked", HERE / "image", layers / package.name)
        some = candidates.find(package, layers / package.name, tests)
        found[package.split] += some
        say(f"{package.name}: {len(some)} mutants caught by tests")

    texts = {f.lines: "warm start" for _, _, text in demonstrations.sources(STDLIB, sorted(options.wheels)) for f in flips.functions(text)}
    say(f"{len(texts)} functions that the warm start may have seen")
    kept = collections.defaultdict(list)
    for split in candidates.WANTED:
        for one in candidates.choose(found[split], split):
            other = texts.setdefault(one.function.lines, split)
            if other != split:
                say(f"dropped {one.function.qualname}: its text is in {other} too")
                continue
            folder = layers / "tasks" / rows.instance_id(one)
            row = rows.write_task(one, layers / one.package.name, HERE / "image", folder)
            kept[split].append((one, row, [folder, layers / one.package.name, layers / "base"]))
    say(f"{sum(map(len, kept.values()))} tasks written")

    everything = [t for ts in kept.values() for t in ts]
    with ThreadPoolExecutor(2) as pool:
        wrong = list(pool.map(lambda t: verify.check(t[1], t[2], list(t[0].buggy)), everything))
    refused = {t[1]["instance_id"]: why for t, why in zip(everything, wrong) if why}
    for name, why in refused.items():
        say(f"refused {name}: {why}")
    say("checked in chroots, graded by swebench")

    write(out, kept, refused, layers, base_tar)
    report = summary(kept, refused)
    (out / "report.json").write_text(json.dumps(report, indent=1) + "\n")
    print(json.dumps(report, indent=1))
    say("layout written")


def write(out: Path, kept: dict, refused: dict, layers: Path, base_tar: Path) -> None:
    layout = oci.Layout(out / "oci")
    shutil.rmtree(out / "rows", ignore_errors=True)
    (out / "rows").mkdir()
    base = base_tar.read_bytes()
    package_layers = {p.name: oci.layer(layers / p.name) for p in packages.PACKAGES}
    for split, tasks in kept.items():
        good = [t for t in tasks if t[1]["instance_id"] not in refused]
        (out / "rows" / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for _, row, _ in good))
        for one, row, folders in good:
            config = {
                "Env": ["PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin", "HOME=/root", "LANG=C.UTF-8", f"F={one.path}"],
                "WorkingDir": "/testbed",
                "Cmd": ["sleep", "infinity"],
                "User": "0:0",
            }
            layout.image(row["image"], [base, package_layers[one.package.name], oci.layer(folders[0])], config)
    layout.image("grpo.dev/demo/tasks:1", [oci.layer(out / "rows")], {})
    model_image(layout, out)
    layout.finish()


def model_image(layout: oci.Layout, out: Path) -> None:
    """The model's files as they are committed; the weights come once the warm start has been trained."""
    model = out / "model-files"
    shutil.rmtree(model, ignore_errors=True)
    model.mkdir()
    for name in MODEL_FILES:
        if (MODEL / name).exists():
            shutil.copy(MODEL / name, model)
    layout.image("grpo.dev/demo/model:1", [oci.layer(model)], {})


def summary(kept: dict, refused: dict) -> dict:
    report = {}
    for split, tasks in kept.items():
        good = [row for _, row, _ in tasks if row["instance_id"] not in refused]
        report[split] = {
            "tasks": len(good),
            "functions": len({r["function"] for r in good}),
            "packages": dict(collections.Counter(r["package"] for r in good)),
            "kinds": dict(collections.Counter(r["bug_kind"] for r in good).most_common()),
            "right_by_chance": round(sum(1 / r["possible_flips"] for r in good) / max(1, len(good)), 3),
        }
    return report


if __name__ == "__main__":
    main()
