"""Manifests: every example comes back as it was, and what the API server would refuse is refused with its field."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from pydantic import ValidationError

import grpo
from conftest import EXAMPLES
from grpo import api, documents

FILES = sorted(EXAMPLES.glob("*.yaml"))
needs_examples = pytest.mark.skipif(not FILES, reason="docs/examples is not beside these tests")

RUN = """
apiVersion: grpo.dev/v1alpha1
kind: GrpoRun
metadata: {name: demo}
spec:
  model: {image: {reference: "grpo.dev/demo/model:1"}}
  store: {persistentVolumeClaim: {claimName: runs}}
"""


@needs_examples
@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_an_example_comes_back_as_it_was(file: Path) -> None:
    # PyYAML alone reads the same values: no example has a value that YAML 1.1 reads in another way.
    values = list(yaml.safe_load_all(file.read_text(encoding="utf-8")))
    objects = grpo.load(file)
    assert [type(one).__name__ for one in objects] == [value["kind"] for value in values]
    assert [one.to_dict() for one in objects] == values
    for text in (grpo.to_yaml(objects), "---\n".join(one.to_yaml() for one in objects)):
        assert documents.read(text, "the text") == values
        assert list(yaml.safe_load_all(text)) == values
    assert grpo.loads(grpo.to_yaml(objects)) == objects
    json.dumps([one.to_dict() for one in objects])


def test_attributes_are_typed_and_changes_are_checked() -> None:
    (run,) = grpo.loads(RUN)
    assert isinstance(run, grpo.GrpoRun)
    assert run.name == "demo" and run.spec.store.persistent_volume_claim is not None
    assert run.spec.trainer is None, "None: the API server decides"
    run.spec.trainer = api.Trainer(nodes=4)
    run.spec.algorithm = api.Algorithm(learning_rate=1e-6)
    assert run.to_dict()["spec"]["trainer"] == {"nodes": 4}
    assert documents.read(run.to_yaml(), "the text")[0]["spec"]["algorithm"] == {"learningRate": 1e-6}
    with pytest.raises(ValidationError, match="greater than or equal to"):
        run.spec.trainer.nodes = 0
    with pytest.raises(ValidationError, match="Input should be"):
        api.AlgorithmAdvantage.model_validate({"std": "Nothing"})


def test_an_object_made_in_python_names_its_kind() -> None:
    spec = api.GrpoRunSpec(
        model=api.Model(image=api.Image(reference="grpo.dev/demo/model:1")),
        store=api.Store(persistent_volume_claim=api.StorePersistentVolumeClaim(claim_name="runs")),
    )
    made = grpo.GrpoRun(metadata=grpo.Metadata(name="demo"), spec=spec)
    (read,) = grpo.loads(RUN)
    assert made.to_dict() == read.to_dict()
    assert list(made.to_dict()) == ["apiVersion", "kind", "metadata", "spec"]


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        (RUN + "  modell: {}", r"GrpoRun demo of the text is refused:\n  spec.modell: this field does not exist"),
        (RUN + "  trainer: {nodes: two}", "spec.trainer.nodes: Input should be a valid integer"),
        (RUN + '  trainer: {nodes: "2"}', "spec.trainer.nodes: Input should be a valid integer"),
        (RUN + "  suspend: 1", "spec.suspend: Input should be a valid boolean"),
        (RUN.replace("metadata: {name: demo}", ""), "metadata: Field required"),
        (RUN.replace("GrpoRun", "GrpoRunn"), "kind GrpoRunn, which grpo.dev does not have; it has: GrpoRun, Infer"),
        (RUN.replace("v1alpha1", "v9"), "apiVersion: Input should be 'grpo.dev/v1alpha1'"),
        (RUN + "  seed: 1\n  seed: 2", "the field seed is written twice"),
        ("a: [", "is no YAML"),
        ("- 1", "no object of Kubernetes"),
        ("kind: GrpoRun", "no object of Kubernetes"),
    ],
)
def test_what_the_api_server_would_refuse_is_refused(text: str, cause: str) -> None:
    with pytest.raises(grpo.ManifestError, match=cause):
        grpo.loads(text)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(grpo.ManifestError, match=r"none\.yaml.*No such file"):
        grpo.load(tmp_path / "none.yaml")
    with pytest.raises(grpo.ManifestError, match="there is no object"):
        grpo.to_yaml([])


def test_other_objects_stay_as_they_are() -> None:
    text = (
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a, labels: {b: c}}\ndata: {x: '1', y: \"on\"}\nnovel: true\n"
    )
    (other,) = grpo.loads(text)
    assert other.to_dict() == yaml.safe_load(text)
    assert yaml.safe_load(other.to_yaml()) == yaml.safe_load(text)


def test_a_status_of_a_newer_operator_is_kept() -> None:
    text = RUN + "status: {phase: Running, novel: {a: 1}, progress: {stage: Rollout, other: 2}}\n"
    (run,) = grpo.loads(text)
    assert isinstance(run, grpo.GrpoRun) and run.status is not None
    assert run.status.phase == "Running"
    assert run.to_dict()["status"]["progress"] == {"stage": "Rollout", "other": 2}
    assert run.to_dict()["status"]["novel"] == {"a": 1}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-6", 1e-6),
        ("2.0e-4", 2e-4),
        ("1:30", "1:30"),
        ("2026-01-02", "2026-01-02"),
        ("yes", "yes"),
        ("on", "on"),
        ("0x10", 16),
        ("012", 12.0),
        (".5", 0.5),
        ("-7", -7),
        ("~", None),
        ("True", True),
        ("500m", "500m"),
        ("1_000", "1_000"),
    ],
)
def test_scalars_are_read_as_yaml_1_2_has_them(text: str, value: object) -> None:
    assert documents.read(f"a: {text}", "the text") == [{"a": value}]


@pytest.mark.parametrize(
    "text",
    [
        "1e-6",
        "1:30",
        "2026-01-02",
        "yes",
        "on",
        "n",
        "Y",
        "0x10",
        "012",
        "",
        "null",
        "~",
        "a\nb\n",
        "a\n  b",
        " a",
        "é",
        "- a",
    ],
)
def test_a_text_stays_a_text_for_every_reader(text: str) -> None:
    written = documents.write([{"a": text}])
    assert documents.read(written, "the text") == [{"a": text}]
    assert yaml.safe_load(written) == {"a": text}
    if text.lower() in ("yes", "on", "n", "y", "1e-6"):
        assert "'" in written or '"' in written
