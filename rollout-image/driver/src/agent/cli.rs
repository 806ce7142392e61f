//! Command-line agents: run unchanged in the sandbox, from the image at `/opt/agent`.

pub mod presets;
