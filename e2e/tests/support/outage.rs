//! Temporary outages of a cluster: its API server, and the images that its node would pull.
//!
//! Only on the local cluster without a container engine, because its scripts stop parts of it.

use super::nodes::{self, LOCAL};
use super::{Result, repository};
use std::process::Command;
use std::time::Duration;

/// Prefix of image names while they cannot be pulled. The images stay in the node's store, and no registry has this
/// name.
const HIDDEN: &str = "hidden.invalid/";
/// Renames each image of the node; `$1` is the prefix. The image that every pod needs for itself stays, and so do the
/// container runtime's own names. Names of a registry with a port stay too: they are from other tests, no pod uses
/// them, and no prefix can be put before a port.
const HIDE: &str = r#"
for image in $(ctr --namespace k8s.io images ls -q | grep -v -e "^$1" -e '^sha256:' -e '/pause' -e '^[^/]*:[0-9]*/'); do
  ctr --namespace k8s.io images tag --force "$image" "$1$image"
  ctr --namespace k8s.io images rm "$image"
done"#;
const SHOW: &str = r#"
for image in $(ctr --namespace k8s.io images ls -q | grep "^$1"); do
  ctr --namespace k8s.io images tag --force "$image" "${image#"$1"}"
  ctr --namespace k8s.io images rm "$image"
done"#;

/// Stops the API server, and starts it again after a while.
pub async fn of_api_server(length: Duration) -> Result<()> {
    script("part.sh", &["stop", "apiserver"])?;
    tokio::time::sleep(length).await;
    script("part.sh", &["start", "apiserver"]).map(drop)
}

/// While this lives, every image that a new container needs must be pulled, and no registry has it.
pub struct HiddenImages(());

impl HiddenImages {
    /// Also hides images that have arrived since.
    pub fn hide() -> Result<Self> {
        let hidden = Self(());
        nodes::on(LOCAL, &["bash", "-ec", HIDE, "hide", HIDDEN])?;
        let still = nodes::on(LOCAL, &["ctr", "--namespace", "k8s.io", "images", "ls", "-q"])?;
        match still.lines().any(|image| image.starts_with(HIDDEN)) {
            true => Ok(hidden),
            false => Err("the node has no image that could be hidden".into()),
        }
    }

    /// Restores the names of images, also those that a killed test left hidden.
    pub fn show() -> Result<()> {
        nodes::on(LOCAL, &["bash", "-ec", SHOW, "show", HIDDEN]).map(drop)
    }
}

impl Drop for HiddenImages {
    fn drop(&mut self) {
        if let Err(error) = Self::show() {
            eprintln!("the images of the node stay hidden (make down, then make cluster): {error}");
        }
    }
}

/// Runs a script of the local cluster.
fn script(name: &str, arguments: &[&str]) -> Result<String> {
    let path = repository().join("e2e/cluster").join(name);
    let out = Command::new(path).args(arguments).output()?;
    match out.status.success() {
        true => Ok(String::from_utf8(out.stdout)?),
        false => Err(format!(
            "{name} {arguments:?}: {}; a cluster in kind has no such outages: leave them out with \
             GRPO_CHAOS_OUTAGE_SECONDS=0",
            String::from_utf8_lossy(&out.stderr).trim_end()
        )
        .into()),
    }
}
