//! What several kinds share: periods, references, the partial pod overlay. Where files come from is in
//! [`crate::sources`].

use std::{borrow::Cow, collections::BTreeMap, fmt, str::FromStr, time::Duration};

use k8s_openapi::api::core::v1::{LocalObjectReference, ResourceRequirements, Toleration};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A length of time as people write it in manifests: `90s`, `30m`, `1h30m`, `500ms`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Period(Duration);

/// Why a text is not a [`Period`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not a length of time: write it like 90s, 30m, 1h30m or 500ms ({reason})")]
pub struct NotAPeriod {
    text: String,
    reason: String,
}

impl Period {
    /// What the API server accepts. Anything it matches, [`Period::from_str`] parses.
    pub const PATTERN: &'static str = "^([0-9]{1,8}(ms|s|m|h))+$";

    pub const fn from_secs(seconds: u64) -> Self {
        Self(Duration::from_secs(seconds))
    }

    pub const fn from_minutes(minutes: u64) -> Self {
        Self::from_secs(minutes * 60)
    }

    pub const fn duration(self) -> Duration {
        self.0
    }

    pub const fn as_secs(self) -> u64 {
        self.0.as_secs()
    }
}

impl From<Period> for Duration {
    fn from(period: Period) -> Self {
        period.0
    }
}

impl FromStr for Period {
    type Err = NotAPeriod;

    fn from_str(text: &str) -> Result<Self, NotAPeriod> {
        let refused = |reason: &str| NotAPeriod {
            text: text.to_owned(),
            reason: reason.to_owned(),
        };
        if text.starts_with(['-', '+']) {
            return Err(refused("it carries a sign"));
        }
        if text.is_empty() {
            return Err(refused("it is empty"));
        }
        if text.len() > 32 {
            return Err(refused("it is longer than 32 characters"));
        }
        kube::core::Duration::from_str(text)
            .map(|parsed| Self(parsed.into()))
            .map_err(|error| refused(&error.to_string()))
    }
}

impl TryFrom<String> for Period {
    type Error = NotAPeriod;

    fn try_from(text: String) -> Result<Self, NotAPeriod> {
        text.parse()
    }
}

impl fmt::Display for Period {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (seconds, millis) = (self.0.as_secs(), self.0.subsec_millis());
        match (seconds / 3600, seconds / 60 % 60, seconds % 60, millis) {
            (0, 0, 0, 0) => write!(f, "0s"),
            (hours, minutes, seconds, millis) => {
                for (amount, unit) in [(hours, "h"), (minutes, "m"), (seconds, "s"), (millis.into(), "ms")] {
                    if amount > 0 {
                        write!(f, "{amount}{unit}")?;
                    }
                }
                Ok(())
            }
        }
    }
}

impl fmt::Debug for Period {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl From<Period> for String {
    fn from(period: Period) -> Self {
        period.to_string()
    }
}

impl JsonSchema for Period {
    fn schema_name() -> Cow<'static, str> {
        "Period".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({"type": "string", "pattern": Self::PATTERN, "maxLength": 32})
    }
}

/// Another object of the same namespace, by name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ObjectRef {
    /// Its name.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
}

/// Another object, by name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NamespacedRef {
    /// Its name.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
    /// Its namespace. Default: the same.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 63))]
    pub namespace: Option<String>,
}

/// One value of a ConfigMap of the same namespace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ConfigMapKeyRef {
    /// Name of the ConfigMap.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
    /// Which of its values.
    #[schemars(length(min = 1, max = 253), regex(pattern = r"^[-._a-zA-Z0-9]+$"))]
    pub key: String,
}

/// One value of a Secret of the same namespace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SecretKeyRef {
    /// Name of the Secret.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
    /// Which of its values.
    #[schemars(length(min = 1, max = 253), regex(pattern = r"^[-._a-zA-Z0-9]+$"))]
    pub key: String,
}

/// One environment variable.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct EnvVariable {
    /// Its name.
    #[schemars(length(min = 1, max = 128), regex(pattern = r"^[A-Za-z_][A-Za-z0-9_]*$"))]
    pub name: String,
    /// Its value, as it is.
    #[serde(default)]
    #[schemars(length(max = 4096))]
    pub value: String,
}

/// What may be laid over the pods of a process: metadata, and where they are scheduled.
#[derive(Clone, Debug, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PodOverlay {
    /// Labels and annotations added to the pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<OverlayMetadata>,
    /// Fields of the pods' spec.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spec: Option<OverlaySpec>,
}

#[derive(Clone, Debug, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct OverlayMetadata {
    /// Labels; those of the operator win.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 32))]
    pub labels: BTreeMap<String, String>,
    /// Annotations.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 32))]
    pub annotations: BTreeMap<String, String>,
}

#[derive(Clone, Debug, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct OverlaySpec {
    /// Nodes must carry these labels.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 32))]
    pub node_selector: BTreeMap<String, String>,
    /// Taints that the pods tolerate.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    pub tolerations: Vec<Toleration>,
    /// Secrets with which images are pulled.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8))]
    pub image_pull_secrets: Vec<LocalObjectReference>,
    /// RuntimeClass of the pods, for example `gvisor`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub runtime_class_name: Option<String>,
    /// PriorityClass of the pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub priority_class_name: Option<String>,
    /// Scheduler of the pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub scheduler_name: Option<String>,
}

/// How one process of a run or pool is run.
#[derive(Clone, Debug, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ProcessOptions {
    /// CPU and memory of its container.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resources: Option<ResourceRequirements>,
    /// Added to its environment.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub env: Vec<EnvVariable>,
    /// Laid over its pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod_template: Option<PodOverlay>,
}

#[cfg(test)]
mod tests;
