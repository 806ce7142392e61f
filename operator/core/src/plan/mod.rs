//! The plan of a manifest, for people: objects in, one page of YAML out.
//!
//! The operator's tests write the plan of every example (`docs/examples/golden`) from the objects that its pure code
//! returns; the book includes these plans, so it always shows the real behaviour. The end-to-end tests write the plan
//! from the objects of a real API server, and compare. To make the two comparable, a plan leaves out what the API
//! server adds (addresses, defaults, its own tokens and tolerations), and has names instead of uids and the namespace.
//!
//! ```text
//! objects ─► normal (uids, namespace) ─► sections: summary, runs, pods, services, policies, rights, files, GPUs
//! ```

mod container;
mod merge;
mod objects;
mod page;
mod pods;
mod runs;
mod source;
mod summary;

use serde_json::Value;

use self::{page::Page, source::Objects};

pub use self::source::Unreadable;

/// The plan of an example: its manifests, and all objects created from them. `namespace` is their namespace, a word
/// with no other meaning in them.
pub fn plan(example: &str, namespace: &str, objects: &[Value]) -> Result<String, Unreadable> {
    let objects = Objects::normal(namespace, objects)?;
    let gpus = objects::claimed_gpus(&objects)?;
    let pods = pods::pods(&objects, &gpus)?;
    let mut page = Page::new(example);
    page.section("summary", &summary::summary(&objects, &pods, &gpus)?)?;
    page.section("not-executed", &runs::not_executed(&objects)?)?;
    page.begin("objects");
    page.section("runs", &runs::runs(&objects)?)?;
    page.section("pods", &pods)?;
    page.section("sandboxes", &runs::sandboxes(&objects)?)?;
    page.section("services", &objects::services(&objects)?)?;
    page.section("policies", &objects::policies(&objects)?)?;
    page.section("rights", &objects::rights(&objects)?)?;
    page.section("files", &objects::files(&objects)?)?;
    if !gpus.is_empty() {
        page.section("shared-gpus", &gpus.in_words())?;
    }
    page.end("objects");
    Ok(page.text())
}

#[cfg(test)]
mod tests;
