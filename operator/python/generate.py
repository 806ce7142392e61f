#!/usr/bin/env python3
"""Makes the typed models in src/grpo/models from the CRDs of the chart and from schemas/views.json.

    generate.py            writes the models
    generate.py --check    fails if the files differ from what would be written
    generate.py --stamp    prints the stamp of the inputs

The packages are those of requirements.txt. Equal inputs give equal files.

The stamp is in the header of each written file, in the line `# inputs sha256: HEX`. It is the SHA-256, in lower case
hexadecimal, of the concatenation of the four inputs in the order of INPUTS. For each input: its path relative to the
repository's root in UTF-8, a newline, the number of its bytes in decimal, a newline, its bytes. The generator itself
is not part of it: `--check` compares what it writes.
"""

from __future__ import annotations

import ast
import hashlib
import json
import re
import sys
import tempfile
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
MODELS = HERE / "src" / "grpo" / "models"
CRDS = {
    "GrpoRun": "charts/grpo-operator/crds/grporuns.yaml",
    "InferencePool": "charts/grpo-operator/crds/inferencepools.yaml",
    "SandboxPool": "charts/grpo-operator/crds/sandboxpools.yaml",
}
VIEWS = "operator/python/schemas/views.json"
# In the order in which they are part of the stamp.
INPUTS = [*CRDS.values(), VIEWS]

# Objects that the API has at several paths get the end of the path that all of them share. Where they share none, a
# person names them here, by any of the paths.
NAMES = {
    "GrpoRun.spec.agent.cli.env[]": "EnvVar",
    "GrpoRun.spec.algorithm.correction.icePop": "CorrectionBounds",
    "GrpoRun.spec.driver": "ProcessSettings",
    "GrpoRun.spec.driver.resources": "Resources",
    "GrpoRun.spec.driver.resources.claims[]": "ResourcesClaim",
    "GrpoRun.spec.imagePullSecrets[]": "SecretName",
    # The kind has the short name.
    "GrpoRun.spec.inference.pool": "InferencePoolTemplate",
    "GrpoRun.spec.inference.pool.engine.external.apiKeySecretRef": "SecretKey",
    "GrpoRun.spec.model.hub": "ModelHub",
    "GrpoRun.spec.reward.shaping.turns": "ShapingCost",
    "GrpoRun.spec.sandboxes.pool": "SandboxPoolSpec",
    "GrpoRun.spec.tasks.evaluate[].select.exclude": "TaskList",
    "GrpoRun.status.attempts.driver": "AttemptCounts",
    "GrpoRun.status.conditions[]": "Condition",
    "InferencePool.status.claimedBy": "RunReference",
}

Schema = dict[str, Any]


def stamp() -> str:
    """The digest of the inputs, as the module's text describes it."""
    digest = hashlib.sha256()
    for path in INPUTS:
        content = (ROOT / path).read_bytes()
        digest.update(f"{path}\n{len(content)}\n".encode())
        digest.update(content)
    return digest.hexdigest()


def class_name(path: Iterable[str]) -> str:
    """`agent`, `cli` is AgentCli; the items of `tolerations[]` are each a Toleration."""

    def word(part: str) -> str:
        if part.endswith("s[]") and not part.endswith("ss[]"):
            part = part[:-3]
        part = part.removesuffix("[]")
        return part[:1].upper() + part[1:]

    return "".join(map(word, path))


def is_model(schema: Schema) -> bool:
    return schema.get("type") == "object" and "properties" in schema


def shape(schema: Schema) -> str:
    """What makes two objects the same type: all but the texts and the defaults of the place where they stand."""
    outer = {key: value for key, value in schema.items() if key not in ("description", "default", "nullable")}
    return json.dumps(outer, sort_keys=True)


def places(schema: Schema, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Schema]]:
    """All objects with properties, with their paths."""
    if is_model(schema):
        yield path, schema
    for name, part in schema.get("properties", {}).items():
        yield from places(part, (*path, name))
    for inner in ("items", "additionalProperties"):
        if isinstance(schema.get(inner), dict):
            yield from places(schema[inner], (*path[:-1], f"{path[-1]}[]"))


def name_of(paths: list[tuple[str, ...]]) -> str:
    named = {NAMES[".".join(path)] for path in paths if ".".join(path) in NAMES}
    if named:
        return named.pop()
    if len(paths) == 1:
        kind, part, *rest = paths[0]
        if not rest or kind != "GrpoRun":
            # GrpoRunSpec, InferencePoolStatus, and the parts of pools: InferencePoolModel.
            return class_name((kind, part) if not rest or part == "status" else (kind,)) + class_name(rest)
        return class_name(rest if part == "spec" else (part, *rest))
    shared: list[str] = []
    for parts in zip(*(reversed(path) for path in paths), strict=False):
        if len(set(parts)) > 1:
            break
        shared.insert(0, parts[0])
    if not shared:
        sys.exit(f"error: the same object has unlike names; name it in NAMES of generate.py, by any of {paths}")
    return class_name(shared)


def of_crds() -> tuple[Schema, set[str]]:
    """One JSON Schema with a definition for each object of the three kinds, and the names of those of statuses only."""
    import yaml

    kinds: dict[str, Schema] = {}
    for kind, file in CRDS.items():
        crd = yaml.safe_load((ROOT / file).read_text(encoding="utf-8"))
        kinds[kind] = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    found: dict[str, list[tuple[str, ...]]] = {}
    for kind, schema in kinds.items():
        for part in ("spec", "status"):
            for path, model in places(schema["properties"][part], (kind, part)):
                found.setdefault(shape(model), []).append(path)
    names = {key: name_of(paths) for key, paths in found.items()}
    of_status = {names[key] for key, paths in found.items() if all(path[1] == "status" for path in paths)}
    twice = {name for name in names.values() if list(names.values()).count(name) > 1}
    if twice:
        sys.exit(f"error: several objects would be named {sorted(twice)}; name them in NAMES of generate.py")
    definitions: dict[str, Schema] = {}

    def told(schema: Schema) -> str:
        """The description with the default, which stays the API server's: None means that it decides."""
        text = str(schema.get("description", "")).strip()
        if "default" not in schema:
            return text
        default = json.dumps(schema["default"], ensure_ascii=False)
        return f"{text}\nDefault: `{default}`.".strip() if len(default) <= 80 else text

    def turn(schema: Schema, is_property: bool = False) -> Schema:
        kept: Schema = {key: schema[key] for key in ("type", "enum") if key in schema}
        if is_property and schema.get("type") != "object":
            # Limits of items and of mappings are left to the API server: each would need a class of its own.
            limits = ("minLength", "maxLength", "pattern", "minItems", "maxItems", "minimum", "maximum")
            kept |= {key: schema[key] for key in limits if key in schema}
        for bound in ("minimum", "maximum"):
            if schema.get("type") == "integer" and bound in kept:
                kept[bound] = int(kept[bound])
        if schema.get("x-kubernetes-int-or-string"):
            kept = {"type": ["integer", "string"]}
        for inner in ("items", "additionalProperties"):
            if isinstance(schema.get(inner), dict):
                kept[inner] = turn(schema[inner])
        if is_model(schema):
            name = names[shape(schema)]
            if name not in definitions:
                define(name, schema)
            kept = {"$ref": f"#/$defs/{name}"}
        elif schema.get("type") == "object" and "additionalProperties" not in schema:
            # An object without settings, such as the embedded engine.
            kept["additionalProperties"] = True
        return kept

    def define(name: str, schema: Schema) -> None:
        definitions[name] = {}
        required = schema.get("required", [])
        properties = {}
        for key in (*required, *(key for key in schema["properties"] if key not in required)):
            part = schema["properties"][key]
            one = turn(part, is_property=True)
            if part.get("nullable") and key in required:
                one = {"anyOf": [one, {"type": "null"}]}
            if told(part):
                one["description"] = told(part)
            properties[key] = one
        definitions[name] = {"type": "object", "properties": properties, "required": required}
        if schema.get("description"):
            definitions[name]["description"] = schema["description"]

    for schema in kinds.values():
        for part in ("spec", "status"):
            turn(schema["properties"][part])
    return {"$defs": definitions}, of_status


def of_views() -> Schema:
    """The views' schema in the order of its required fields, and without the widths of numbers."""
    schema: Schema = json.loads((ROOT / VIEWS).read_text(encoding="utf-8"))

    def turn(value: Any) -> Any:
        if isinstance(value, list):
            return [turn(one) for one in value]
        if not isinstance(value, dict):
            return value
        kept = {key: turn(one) for key, one in value.items() if key not in ("format", "minimum", "maximum")}
        if "properties" in kept:
            required = kept.get("required", [])
            names = (*required, *(name for name in kept["properties"] if name not in required))
            kept["properties"] = {name: kept["properties"][name] for name in names}
        if "oneOf" in kept and all("const" in one for one in kept["oneOf"]):
            values = kept.pop("oneOf")
            kept |= {"type": "string", "enum": [one["const"] for one in values]}
            lines = [f"{one['const']}: {one['description']}" for one in values if "description" in one]
            kept["description"] = "\n".join([kept.get("description", ""), *lines]).strip()
        return kept

    return {"$defs": {name: turn(one) for name, one in schema["$defs"].items()}}


def written(schema: Schema, base: str, of_status: set[str], title: str, origin: str) -> str:
    """The text of a module with a class for each definition."""
    from datamodel_code_generator import InputFileType, LiteralType, generate
    from datamodel_code_generator.enums import DataModelType
    from datamodel_code_generator.format import Formatter, PythonVersion

    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "models.py"
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            generate(
                json.dumps(schema),
                input_filename="schema.json",
                input_file_type=InputFileType.JsonSchema,
                output=output,
                output_model_type=DataModelType.PydanticV2BaseModel,
                base_class=f"grpo.base.{base}",
                base_class_map={name: "grpo.base.Status" for name in sorted(of_status)},
                target_python_version=PythonVersion.PY_310,
                snake_case_field=True,
                no_alias=True,
                enum_field_as_literal=LiteralType.All,
                use_annotated=True,
                use_tuple_for_fixed_items=True,
                use_field_description=True,
                use_schema_description=True,
                use_single_line_docstring=True,
                skip_root_model=True,
                collapse_root_models=True,
                disable_timestamp=True,
                keep_model_order=True,
                formatters=[Formatter.BUILTIN],
                custom_file_header="# HEADER",
            )
        text = output.read_text(encoding="utf-8")
    head = (
        f"# Made from {origin} by operator/python/generate.py; do not edit.\n"
        f"# inputs sha256: {stamp()}\n"
        f'"""{title}"""\n'
    )
    assert text.startswith("# HEADER\n"), text[:200]
    if base == "View":
        # A number that JSON cannot write arrives as null.
        text = re.sub(r"^(    \w+: (?:list\[)?)float(?! \| None)", r"\1Number", text, flags=re.MULTILINE)
        text = text.replace("from grpo.base import View", "from grpo.base import Number, View")
    text = head + text.removeprefix("# HEADER\n")
    check_names(text, schema)
    return text


def check_names(text: str, schema: Schema) -> None:
    """Fails if an attribute's name does not lead back to the name in JSON."""
    sys.path.insert(0, str(HERE / "src"))
    from grpo.base import json_name

    for node in ast.parse(text).body:
        if isinstance(node, ast.ClassDef):
            attributes = [
                one.target.id
                for one in node.body
                if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name)
            ]
            there = {json_name(name) for name in attributes}
            wanted = set(schema["$defs"][node.name]["properties"])
            if there != wanted:
                sys.exit(
                    f"error: {node.name} has {there - wanted} in place of {wanted - there}; "
                    "name them in IRREGULAR of grpo/base.py"
                )


def files() -> dict[Path, str]:
    crds, of_status = of_crds()
    title = "The parts of GrpoRun, InferencePool and SandboxPool."
    api = written(crds, "Spec", of_status, title, "charts/grpo-operator/crds")
    views = written(of_views(), "View", set(), "The views of a run's records.", VIEWS)
    return {MODELS / "api.py": api, MODELS / "views.py": views}


def main() -> None:
    if sys.argv[1:] == ["--stamp"]:
        print(stamp())
        return
    if sys.argv[1:] not in ([], ["--check"]):
        sys.exit((__doc__ or "").strip())
    stale = []
    for file, text in files().items():
        ast.parse(text)
        if sys.argv[1:] == ["--check"]:
            if not file.exists() or file.read_text(encoding="utf-8") != text:
                stale.append(str(file.relative_to(ROOT)))
        else:
            file.write_text(text, encoding="utf-8")
    if stale:
        sys.exit(
            f"error: {', '.join(stale)}: not what generate.py writes; run operator/python/generate.py and commit it"
        )


if __name__ == "__main__":
    main()
