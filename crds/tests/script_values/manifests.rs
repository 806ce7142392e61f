//! The objects of `docs/examples`, with every default, and the schemas that say which fields exist.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

use grpo_crds::{GrpoRun, InferencePool, SandboxPool, crd};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::Value;

use super::rows::LEFT_OUT;

/// One object of a manifest.
pub struct Object {
    kind: String,
    name: String,
    /// Its spec as people wrote it.
    pub written: Value,
    /// Its spec with every default.
    effective: Value,
}

/// All of them, by manifest.
pub struct Manifests {
    objects: BTreeMap<String, Vec<Object>>,
    /// Schema of each kind's spec.
    schemas: BTreeMap<String, Value>,
}

impl Manifests {
    pub fn read(folder: &Path) -> Self {
        let objects = super::names_in(folder)
            .into_iter()
            .map(|name| {
                let text = fs::read_to_string(folder.join(format!("{name}.yaml"))).unwrap();
                (name, objects(&text))
            })
            .collect();
        Self::of(objects)
    }

    fn of(objects: BTreeMap<String, Vec<Object>>) -> Self {
        let schema = |crd| crd::schema(crd).unwrap()["properties"]["spec"].take();
        let schemas = crd::all()
            .iter()
            .map(|crd| (crd.spec.names.kind.clone(), schema(crd)))
            .collect();
        Self { objects, schemas }
    }

    /// A manifest by itself.
    pub fn one(name: &str, text: &str) -> Self {
        Self::of(BTreeMap::from([(name.to_owned(), objects(text))]))
    }

    /// The objects of a manifest.
    pub fn objects(&self, manifest: &str) -> &[Object] {
        self.objects.get(manifest).map_or(&[], Vec::as_slice)
    }

    /// The value of a field, with defaults: `left out` if it is optional and not set.
    pub fn value(&self, manifest: &str, of: Option<&str>, field: &str) -> Result<Value, String> {
        let object = self.object(manifest, of)?;
        if !exists(&self.schemas[&object.kind], field) {
            return Err(format!("{} has no field spec.{field}", object.kind));
        }
        let found = steps(field).try_fold(&object.effective, |value, step| match step {
            Step::Field(name) => value.get(name),
            Step::Item(number) => value.get(number),
        });
        Ok(found.cloned().unwrap_or_else(|| LEFT_OUT.into()))
    }

    /// The object that a row is about: one of the manifest's own or, by kind and name, of another manifest.
    fn object(&self, manifest: &str, of: Option<&str>) -> Result<&Object, String> {
        let own = self.objects(manifest);
        match of {
            None => own.iter().find(|object| object.kind == "GrpoRun"),
            Some(of) => {
                let others = self.objects.values().flatten();
                own.iter().chain(others).find(|object| object.is(of))
            }
        }
        .ok_or_else(|| format!("there is no {}", of.unwrap_or("GrpoRun")))
    }
}

impl Object {
    /// Whether a row's `of` names it.
    pub fn is(&self, of: &str) -> bool {
        of.split_once(' ') == Some((&self.kind, &self.name))
    }

    pub fn is_run(&self) -> bool {
        self.kind == "GrpoRun"
    }

    pub fn title(&self) -> String {
        format!("{} {}", self.kind, self.name)
    }

    /// Paths of all values that its author wrote.
    pub fn leaves(&self) -> BTreeSet<String> {
        let mut found = BTreeSet::new();
        leaves("", &self.written, &mut found);
        found
    }
}

fn objects(text: &str) -> Vec<Object> {
    serde_yaml_ng::Deserializer::from_str(text)
        .map(|document| Value::deserialize(document).unwrap())
        .map(|mut document| {
            let effective = match document["kind"].as_str() {
                Some("GrpoRun") => with_defaults::<GrpoRun>(&document),
                Some("InferencePool") => with_defaults::<InferencePool>(&document),
                Some("SandboxPool") => with_defaults::<SandboxPool>(&document),
                other => panic!("kind {other:?}"),
            };
            Object {
                kind: document["kind"].as_str().unwrap().to_owned(),
                name: document["metadata"]["name"].as_str().unwrap().to_owned(),
                written: document["spec"].take(),
                effective,
            }
        })
        .collect()
}

/// The spec as the type reads it.
fn with_defaults<K: DeserializeOwned + Serialize>(document: &Value) -> Value {
    let object: K = serde_json::from_value(document.clone()).unwrap();
    serde_json::to_value(&object).unwrap()["spec"].take()
}

/// A step of a path.
enum Step<'a> {
    Field(&'a str),
    Item(usize),
}

/// The steps of `tasks.evaluate[0].every`.
fn steps(path: &str) -> impl Iterator<Item = Step<'_>> {
    path.split(['.', '[']).map(|step| match step.strip_suffix(']') {
        Some(number) => Step::Item(number.parse().unwrap()),
        None => Step::Field(step),
    })
}

/// Whether a schema has a field.
fn exists(schema: &Value, path: &str) -> bool {
    let found = steps(path).try_fold(schema, |schema, step| match step {
        Step::Item(_) => schema.get("items"),
        Step::Field(name) => {
            let named = schema.get("properties").and_then(|fields| fields.get(name));
            // A map, such as the limits of a container.
            named.or_else(|| schema.get("additionalProperties"))
        }
    });
    found.is_some()
}

fn leaves(path: &str, value: &Value, found: &mut BTreeSet<String>) {
    match value {
        Value::Object(fields) if !fields.is_empty() => {
            for (name, value) in fields {
                let path = if path.is_empty() {
                    name.clone()
                } else {
                    format!("{path}.{name}")
                };
                leaves(&path, value, found);
            }
        }
        Value::Array(items) if items.iter().any(Value::is_object) => {
            for (number, item) in items.iter().enumerate() {
                leaves(&format!("{path}[{number}]"), item, found);
            }
        }
        _ => {
            found.insert(path.to_owned());
        }
    }
}
