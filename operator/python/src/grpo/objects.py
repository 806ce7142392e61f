"""The objects of manifests: the three kinds of `grpo.dev` with types, and all others as they are."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from grpo import documents
from grpo.base import json_name
from grpo.errors import ManifestError, faults
from grpo.models.api import (
    GrpoRunSpec,
    GrpoRunStatus,
    InferencePoolSpec,
    InferencePoolStatus,
    SandboxPoolSpec,
    SandboxPoolStatus,
)

VERSION: Literal["grpo.dev/v1alpha1"] = "grpo.dev/v1alpha1"


class Metadata(BaseModel):
    """The metadata of an object. Fields that have no attribute here are kept."""

    model_config = ConfigDict(alias_generator=json_name, populate_by_name=True, extra="allow", validate_assignment=True)

    name: str | None = None
    generate_name: str | None = None
    namespace: str | None = None
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    uid: str | None = None
    resource_version: str | None = None
    generation: int | None = None
    creation_timestamp: str | None = None


class Manifest(BaseModel):
    """An object of Kubernetes."""

    model_config = ConfigDict(alias_generator=json_name, populate_by_name=True, extra="allow", validate_assignment=True)

    api_version: str
    kind: str
    metadata: Metadata

    @property
    def name(self) -> str:
        """`metadata.name`; empty without one."""
        return self.metadata.name or ""

    def to_dict(self) -> dict[str, Any]:
        """The object as JSON has it. Only fields that were given are in it: the API server knows the defaults."""
        fields = self.model_dump(mode="json", by_alias=True, exclude_unset=True)
        return {"apiVersion": self.api_version, "kind": self.kind, **fields}

    def to_yaml(self) -> str:
        """The object as YAML."""
        return documents.write([self.to_dict()])


class _Ours(Manifest):
    model_config = ConfigDict(extra="forbid")

    # The API server refuses another version, so a manifest need not name it in Python.
    api_version: str = VERSION
    kinds: ClassVar[dict[str, type[_Ours]]] = {}

    def __init_subclass__(cls, **given: Any) -> None:
        super().__init_subclass__(**given)
        cls.kinds[cls.__name__] = cls


class GrpoRun(_Ours):
    """A GRPO run."""

    api_version: Literal["grpo.dev/v1alpha1"] = VERSION
    kind: Literal["GrpoRun"] = "GrpoRun"
    spec: GrpoRunSpec
    status: GrpoRunStatus | None = None


class InferencePool(_Ours):
    """Replicas of an inference engine."""

    api_version: Literal["grpo.dev/v1alpha1"] = VERSION
    kind: Literal["InferencePool"] = "InferencePool"
    spec: InferencePoolSpec
    status: InferencePoolStatus | None = None


class SandboxPool(_Ours):
    """Sandboxes, and the gateway that leases them."""

    api_version: Literal["grpo.dev/v1alpha1"] = VERSION
    kind: Literal["SandboxPool"] = "SandboxPool"
    spec: SandboxPoolSpec
    status: SandboxPoolStatus | None = None


def typed(value: Any, place: str) -> Manifest:
    """The object of a document. `place` names it in an error."""
    if not isinstance(value, dict) or not all(isinstance(value.get(key), str) for key in ("apiVersion", "kind")):
        raise ManifestError(f"{place} is no object of Kubernetes: it has no apiVersion and kind; compare docs/examples")
    is_ours = value["apiVersion"].partition("/")[0] == "grpo.dev"
    model = _Ours.kinds.get(value["kind"]) if is_ours else Manifest
    if model is None:
        known = ", ".join(sorted(_Ours.kinds))
        raise ManifestError(f"{place} has the kind {value['kind']}, which grpo.dev does not have; it has: {known}")
    try:
        return model.model_validate(value)
    except ValidationError as error:
        metadata = value.get("metadata")
        name = metadata.get("name", "without a name") if isinstance(metadata, dict) else "without a name"
        raise ManifestError(
            f"{value['kind']} {name} of {place} is refused:\n{faults(error)}\n"
            "The API reference (docs/src/reference.md) has all fields; grpo.plan also checks rules between fields"
        ) from error
