//! What a manifest becomes in a cluster, as people read it: objects in, one page of YAML out.
//!
//! The operator's tests write it for every example (`docs/examples/golden`), from the objects that its pure code wants;
//! the book's pages include it, so that they cannot say anything else than what happens. The end-to-end tests write it
//! from the objects that a real API server holds, and compare. So that the two can be compared, only what somebody
//! decided is read: what the API server adds by itself (addresses, defaults, its own tokens and tolerations) is left
//! out, uids and the namespace are named instead of shown.
//!
//! ```text
//! objects ─► normal (uids, namespace) ─► sections: summary, runs, pods, services, policies, rights, files
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

/// What the objects are, as people read it: the manifests of an example, and everything that they came to own.
/// `namespace` is theirs, a word that means nothing else in them.
pub fn plan(example: &str, namespace: &str, objects: &[Value]) -> Result<String, Unreadable> {
    let objects = Objects::normal(namespace, objects)?;
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
    Ok(page.text())
}

#[cfg(test)]
mod tests;
