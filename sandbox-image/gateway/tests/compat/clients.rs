//! Third-party clients against a gateway; e2e/clients/check.sh installs them and sets the variables with their paths.

use std::path::{Path, PathBuf};

use tokio::process::Command;

use crate::World;
use crate::played::bounds;
use crate::played::sandboxes::Sandboxds;
use grpo_gateway::index::Bounds;

fn script(name: &str) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    root.join("e2e/clients").join(name)
}

/// Runs a script with the Python that a variable names. Its output is shown.
async fn run(variable: &str, name: &str, world: &World) {
    let python = std::env::var(variable).unwrap_or_else(|_| panic!("{variable} must name a Python with the client"));
    let ran = Command::new(python)
        .arg(script(name))
        .args([&world.url, world.cwd()])
        .status()
        .await
        .unwrap();
    assert!(ran.success(), "{name}: {ran}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs mini-swe-agent: make check-clients"]
async fn mini_swe_agent_runs_its_agents_in_sandboxes() {
    run(
        "MINI_SWE_AGENT_PYTHON",
        "mini_swe_agent.py",
        &World::of(bounds(4)).await,
    )
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs swe-rex: make check-clients"]
async fn the_remote_runtime_of_swe_rex_works_in_a_sandbox() {
    run("SWE_REX_PYTHON", "swe_rex.py", &World::of(bounds(4)).await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs schemathesis and root: make check-clients"]
async fn schemathesis_finds_no_fault_with_the_description_of_the_api() {
    // Generated leases are not released, and ended leases test nothing.
    let bounds = Bounds {
        max_ttl_millis: 60_000,
        ..bounds(128)
    };
    let world = World::on(Sandboxds::confined(), bounds, "allowUnenforced: true").await;
    run("SCHEMATHESIS_PYTHON", "openapi.py", &world).await;
}
