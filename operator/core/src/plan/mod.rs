//! What a manifest becomes in a cluster, as people read it: objects in, one page of YAML out.
//!
//! The operator's tests write it for every example (`docs/examples/golden`), from the objects that its pure code wants;
//! the book's pages include it, so that they cannot say anything else than what happens. The end-to-end tests write it
//! from the objects that a real API server holds, and compare. So that the two can be compared, only what somebody
//! decided is read: what the API server adds by itself (addresses, defaults, its own tokens and tolerations) is left
//! out, uids and the namespace are named instead of shown.
//!
//! ```text
//! objects ─► normal (uids, namespace) ─► sections: summary, not executed, runs, pods, services, policies, rights, files
//! ```

mod container;
mod merge;
mod objects;
mod pods;
mod runs;
mod summary;

use k8s_openapi::{NamespaceResourceScope, Resource};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;

/// Why objects cannot be planned.
#[derive(Debug, thiserror::Error)]
pub enum Unreadable {
    #[error("failed to read {what}: {source}; is it of a version that this code knows?")]
    Object { what: String, source: serde_json::Error },
    #[error("failed to write the section {section}: {source}")]
    Section {
        section: &'static str,
        source: serde_yaml_ng::Error,
    },
}

/// What the objects are, as people read it: the manifests of an example, and everything that they came to own.
/// `namespace` is theirs, a word that means nothing else in them.
pub fn plan(example: &str, namespace: &str, objects: &[Value]) -> Result<String, Unreadable> {
    let objects = Objects(normal(namespace, objects)?);
    let pods = pods::pods(&objects)?;
    let mut page = Page::new(example);
    page.section("summary", &summary::summary(&objects, &pods)?)?;
    page.section("not-executed", &runs::not_executed(&objects)?)?;
    page.begin("objects");
    page.section("runs", &runs::runs(&objects)?)?;
    page.section("pods", &pods)?;
    page.section("sandboxes", &runs::sandboxes(&objects)?)?;
    page.section("services", &objects::services(&objects)?)?;
    page.section("policies", &objects::policies(&objects)?)?;
    page.section("rights", &objects::rights(&objects)?)?;
    page.section("files", &objects::files(&objects)?)?;
    page.end("objects");
    Ok(page.0)
}

/// The objects, of which uids are told apart by whose they are.
struct Objects(Vec<Value>);

impl Objects {
    fn of_kind<K: Resource<Scope = NamespaceResourceScope> + DeserializeOwned>(&self) -> Result<Vec<K>, Unreadable> {
        self.named(K::KIND)
    }

    /// All objects of a kind, by name.
    fn named<K: DeserializeOwned>(&self, kind: &str) -> Result<Vec<K>, Unreadable> {
        let mut found: Vec<&Value> = self.0.iter().filter(|object| object["kind"] == kind).collect();
        found.sort_by_key(|object| name(object));
        found
            .into_iter()
            .map(|object| {
                serde_json::from_value(object.clone()).map_err(|source| Unreadable::Object {
                    what: whole_name(object),
                    source,
                })
            })
            .collect()
    }
}

fn name(object: &Value) -> &str {
    object["metadata"]["name"].as_str().unwrap_or_default()
}

fn whole_name(object: &Value) -> String {
    format!("{} {}", object["kind"].as_str().unwrap_or("an object"), name(object))
}

/// The same objects, with every uid as `<uid-of-Kind-name>` and the namespace as `<namespace>`, wherever they are
/// mentioned.
fn normal(namespace: &str, objects: &[Value]) -> Result<Vec<Value>, Unreadable> {
    let unreadable = |source| Unreadable::Object {
        what: "the objects".into(),
        source,
    };
    let mut text = serde_json::to_string(objects).map_err(unreadable)?;
    for object in objects {
        if let Some(uid) = object["metadata"]["uid"].as_str() {
            text = text.replace(uid, &format!("<uid-of-{}>", whole_name(object).replace(' ', "-")));
        }
    }
    serde_json::from_str(&text.replace(namespace, "<namespace>")).map_err(unreadable)
}

/// The text so far.
struct Page(String);

impl Page {
    fn new(example: &str) -> Self {
        Self(format!(
            "# What ../{example}.yaml becomes in a cluster. Written by the operator's tests (`make golden`) and not by hand.\n"
        ))
    }

    /// A section that pages may include by its name. One with nothing in it says so.
    fn section(&mut self, name: &'static str, content: &impl Serialize) -> Result<(), Unreadable> {
        let text =
            serde_yaml_ng::to_string(&content).map_err(|source| Unreadable::Section { section: name, source })?;
        let key = name.replace('-', " ");
        self.begin(name);
        match text.trim() {
            "{}" | "[]" => self.0.push_str(&format!("{key}: nothing\n")),
            text => self.0.push_str(&format!("{key}:\n{}\n", indented(text))),
        }
        self.end(name);
        Ok(())
    }

    fn begin(&mut self, anchor: &str) {
        self.0.push_str(&format!("# ANCHOR: {anchor}\n"));
    }

    fn end(&mut self, anchor: &str) {
        self.0.push_str(&format!("# ANCHOR_END: {anchor}\n"));
    }
}

fn indented(text: &str) -> String {
    let lines: Vec<String> = text
        .lines()
        .map(|line| {
            if line.is_empty() {
                String::new()
            } else {
                format!("  {line}")
            }
        })
        .collect();
    lines.join("\n")
}

#[cfg(test)]
mod tests;
