//! Access to the fields of a `config.json`; an error names the field.

use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::error::ModelError;
use crate::yarn::Yarn;

/// Keys of every `rope_scaling` and `rope_parameters`.
const OF_ANY_ROPE: [&str; 4] = ["rope_type", "type", "rope_theta", "partial_rotary_factor"];
/// Keys of YaRN.
const OF_YARN: [&str; 10] = [
    "factor",
    "original_max_position_embeddings",
    "attention_factor",
    "attn_factor",
    "extrapolation_factor",
    "mscale",
    "mscale_all_dim",
    "beta_fast",
    "beta_slow",
    "truncate",
];

pub(super) struct Fields<'a> {
    path: &'a str,
    values: Map<String, Value>,
}

impl<'a> Fields<'a> {
    pub(super) fn parse(bytes: &[u8], path: &'a str) -> Result<Self, ModelError> {
        let malformed = |message: String| ModelError::Malformed {
            path: path.to_owned(),
            message,
        };
        match serde_json::from_slice(bytes).map_err(|e| malformed(e.to_string()))? {
            Value::Object(values) => Ok(Self { path, values }),
            other => Err(malformed(format!("it holds {other}, not an object"))),
        }
    }

    pub(super) fn refuse(&self, field: &'static str, found: String, wanted: &'static str) -> ModelError {
        ModelError::Unsupported {
            path: self.path.to_owned(),
            field,
            found,
            wanted,
        }
    }

    /// Whether a field is missing; a null is not missing.
    pub(super) fn absent(&self, field: &str) -> bool {
        !self.values.contains_key(field)
    }

    /// A field's value, unless it is null.
    pub(super) fn present(&self, field: &str) -> Option<&Value> {
        self.values.get(field).filter(|value| !value.is_null())
    }

    pub(super) fn optional<T: DeserializeOwned>(
        &self,
        field: &'static str,
        wanted: &'static str,
    ) -> Result<Option<T>, ModelError> {
        self.present(field)
            .map(|value| {
                serde_json::from_value(value.clone()).map_err(|_| self.refuse(field, value.to_string(), wanted))
            })
            .transpose()
    }

    pub(super) fn positive(&self, field: &'static str) -> Result<usize, ModelError> {
        let wanted = "a positive whole number is";
        match self.optional(field, wanted)? {
            Some(0) => Err(self.refuse(field, "0".to_owned(), wanted)),
            Some(value) => Ok(value),
            None => Err(self.refuse(field, "missing".to_owned(), wanted)),
        }
    }

    pub(super) fn above(&self, field: &'static str, least: f64) -> Result<f64, ModelError> {
        let found = self.optional::<f64>(field, "a number is")?;
        match found.filter(|value| *value > least) {
            Some(value) => Ok(value),
            None => {
                let found = found.map_or("missing".to_owned(), |value| value.to_string());
                Err(self.refuse(field, found, "a positive number is"))
            }
        }
    }

    /// Refuses any other value than this one; a missing field counts as this one.
    pub(super) fn only(
        &self,
        field: &'static str,
        value: impl Into<Value>,
        wanted: &'static str,
    ) -> Result<(), ModelError> {
        let value = value.into();
        match self.present(field) {
            // 0 and 0.0 count as equal.
            Some(found) if *found != value && (found.as_f64().is_none() || found.as_f64() != value.as_f64()) => {
                Err(self.refuse(field, found.to_string(), wanted))
            }
            _ => Ok(()),
        }
    }

    /// The rotary base and its scaling: in separate fields (`rope_theta`, `rope_scaling`), or in one
    /// (`rope_parameters`, transformers 5).
    pub(super) fn rope(&self, positions: usize) -> Result<(f64, Option<Yarn>), ModelError> {
        let scaling: Option<Map<String, Value>> = self.optional("rope_scaling", "an object is")?;
        let parameters: Option<Map<String, Value>> = self.optional("rope_parameters", "an object is")?;
        let (name, inner) = match (parameters, scaling) {
            (Some(_), Some(scaling)) => {
                let found = format!("{} beside rope_parameters", Value::Object(scaling));
                return Err(self.refuse("rope_scaling", found, "one of the two says how positions are scaled"));
            }
            (Some(parameters), None) => ("rope_parameters", parameters),
            (None, Some(scaling)) => ("rope_scaling", scaling),
            (None, None) => ("rope_scaling", Map::new()),
        };
        let inner = Self {
            path: self.path,
            values: inner,
        };
        let (outside, inside) = (self.present("rope_theta"), inner.present("rope_theta"));
        let theta = match (outside, inside) {
            (Some(a), Some(b)) if a.as_f64() != b.as_f64() => {
                return Err(self.refuse("rope_theta", format!("{a} and {b}"), "the two places must agree"));
            }
            (None, Some(_)) => inner.above("rope_theta", 1.0)?,
            _ => self.above("rope_theta", 1.0)?,
        };
        inner.only("partial_rotary_factor", 1.0, "all of a head is rotated")?;
        let mut kinds = ["rope_type", "type"].iter().filter_map(|key| inner.present(key));
        match kinds.next().map_or(Some("default"), Value::as_str) {
            Some("default") => {
                inner.only_keys(
                    name,
                    &OF_ANY_ROPE,
                    "a key of a scaling needs its rope_type beside it, such as yarn",
                )?;
                Ok((theta, None))
            }
            Some("yarn") => Ok((theta, Some(inner.yarn(name, positions)?))),
            _ => {
                let found = Value::Object(inner.values.clone()).to_string();
                Err(self.refuse(name, found, "default and yarn are"))
            }
        }
    }

    /// Refuses other keys than these in the object `name`; a null counts as missing.
    fn only_keys(&self, name: &'static str, known: &[&str], wanted: &'static str) -> Result<(), ModelError> {
        let unknown = |(key, value): &(&String, &Value)| !known.contains(&key.as_str()) && !value.is_null();
        match self.values.iter().find(unknown) {
            Some((key, value)) => Err(self.refuse(name, format!("{key}: {value}"), wanted)),
            None => Ok(()),
        }
    }

    fn yarn(&self, name: &'static str, positions: usize) -> Result<Yarn, ModelError> {
        let known = [&OF_ANY_ROPE[..], &OF_YARN].concat();
        self.only_keys(name, &known, "YaRN as Qwen has it is")?;
        let factor = self.above("factor", 0.0)?;
        if factor < 1.0 {
            return Err(self.refuse("factor", factor.to_string(), "it must be 1 at least"));
        }
        let number = |field, otherwise: f64| -> Result<f64, ModelError> {
            match self.present(field) {
                Some(_) => self.above(field, 0.0),
                None => Ok(otherwise),
            }
        };
        Ok(Yarn {
            factor,
            original: match self.present("original_max_position_embeddings") {
                Some(_) => self.positive("original_max_position_embeddings")?,
                None => positions,
            },
            attention_factor: self.attention_factor(factor)?,
            beta_fast: number("beta_fast", 32.0)?,
            beta_slow: number("beta_slow", 1.0)?,
            // A null is false in Python.
            truncate: match self.absent("truncate") {
                true => true,
                false => self.optional("truncate", "true or false")?.unwrap_or(false),
            },
        })
    }

    /// The paper's factor. transformers, vLLM and SGLang do not all read these keys, and their versions differ: a run
    /// would sample from one model and train another.
    fn attention_factor(&self, factor: f64) -> Result<f64, ModelError> {
        let paper = 0.1 * factor.ln() + 1.0;
        let wanted = "0.1 ln(factor) + 1 scales attention; not all engines read this key: remove it";
        for key in ["mscale", "mscale_all_dim"] {
            if let Some(found) = self.present(key) {
                return Err(self.refuse(key, found.to_string(), wanted));
            }
        }
        for key in ["attn_factor", "extrapolation_factor"] {
            self.only(
                key,
                1,
                "1 is; transformers and some engines do not read this key: remove it",
            )?;
        }
        match self.optional::<f64>("attention_factor", "a number is")? {
            Some(stated) if (stated - paper).abs() > 1e-6 => {
                Err(self.refuse("attention_factor", stated.to_string(), wanted))
            }
            _ => Ok(paper),
        }
    }
}
