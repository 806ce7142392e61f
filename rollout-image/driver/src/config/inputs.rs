//! The checksum of what a run in mode Evaluate measures: model, agent, and how each set is sampled and graded.
//!
//! The journal keeps it, so that a run which takes over a store does not show the results of another model or agent as
//! its own. Tasks have a checksum of their own, and sampling is not part of it: a run may change it while it works.
//! Only the fields that this module names count, with the values of the spec and not with the driver's default texts:
//! an upgrade of the driver must not change the checksum. A field that is added later may count only if its value is
//! not the default.

use grpo_crds::GrpoRunSpec;
use grpo_crds::agent::{Agent, BashAgent, CliAgent, ToolsAgent};
use grpo_crds::common::{EnvVariable, Period};
use grpo_crds::grpo_run::RowFormat;
use grpo_crds::sources::ModelSource;
use grpo_records::store::sha256_hex;
use serde_json::{Value, json};

/// The checksums of a run's spec: the current one, and the one of earlier versions, which left out the served pool and
/// how rows are read. Only lists are hashed: the order of an object's fields depends on how JSON is built.
pub fn checksums(spec: &GrpoRunSpec) -> Inputs {
    let sets = spec.tasks.evaluate.iter().filter_map(|set| {
        let fields: Vec<String> = set.prompt_fields.iter().map(|field| format!("{field:?}")).collect();
        let format = (set.format != RowFormat::default()).then(|| format!("{:?}", set.format));
        let is_plain = set.image.is_none() && format.is_none() && fields.is_empty();
        (!is_plain).then(|| json!([set.name, set.image, format, fields]))
    });
    let sets: Vec<Value> = sets.collect();
    let pool = spec.inference.pool_ref.as_ref().map(|pool| pool.name.as_str());
    let earlier = of_earlier_versions(spec);
    let sha256 = match (sets.is_empty(), pool) {
        (true, None) => earlier.clone(),
        _ => sha256_hex(json!([earlier, sets, pool]).to_string().as_bytes()),
    };
    Inputs { sha256, earlier }
}

/// The checksum of what a run measures.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inputs {
    pub sha256: String,
    /// As earlier versions of the driver computed it.
    pub earlier: String,
}

fn of_earlier_versions(spec: &GrpoRunSpec) -> String {
    let sets = spec.tasks.evaluate.iter();
    let sets: Vec<Value> = sets
        .map(|set| json!([set.name, set.samples, set.seed.unwrap_or(spec.seed)]))
        .collect();
    let inputs = json!([
        model(&spec.model.source()),
        served(spec),
        agent(&spec.agent),
        sets,
        millis(spec.reward.grade_timeout)
    ]);
    sha256_hex(inputs.to_string().as_bytes())
}

fn model(source: &ModelSource) -> Value {
    let image = source.image.as_ref().map(|image| json!([image.reference, image.path]));
    let claim = source.persistent_volume_claim.as_ref();
    let claim = claim.map(|claim| json!([claim.claim_name, claim.path]));
    let hub = source.hub.as_ref().map(|hub| json!([hub.repo, hub.revision]));
    let bucket = source.object_store.as_ref();
    let bucket = bucket.map(|bucket| json!([bucket.url, bucket.endpoint]));
    json!([image, claim, hub, bucket])
}

/// The model of an external server. A server may move to another URL, so the URL counts only if no model is named.
fn served(spec: &GrpoRunSpec) -> Option<&str> {
    let external = spec.inference.pool.as_ref()?.engine.external.as_ref()?;
    Some(external.model.as_deref().unwrap_or(&external.url))
}

fn agent(agent: &Agent) -> Value {
    let limits = &agent.limits;
    json!([
        agent.bash.as_ref().map(bash),
        agent.tools.as_ref().map(tools),
        agent.cli.as_ref().map(cli),
        env(&agent.env),
        [
            Some(u64::from(limits.turns)),
            Some(millis(limits.command_timeout)),
            Some(millis(limits.episode_timeout)),
            limits.context_tokens.map(u64::from),
            limits.episode_tokens.map(u64::from),
        ],
        format!("{:?}", agent.context.thinking),
        agent.context.trim.as_ref().map(|trim| [trim.head, trim.tail]),
    ])
}

fn bash(bash: &BashAgent) -> Value {
    json!([
        format!("{:?}", bash.preset),
        bash.system,
        bash.task,
        bash.observation,
        bash.format_error,
        bash.submit_sentinel,
        bash.edit_tool,
    ])
}

fn tools(tools: &ToolsAgent) -> Value {
    json!([
        format!("{:?}", tools.toolset),
        format!("{:?}", tools.call_format),
        tools.grep,
        tools.bash,
        tools.directory_tree,
        tools.keep_breakpoints,
        tools.eval_after_rewrite,
        tools.list_after_continue,
        tools.system,
        tools.task,
    ])
}

fn cli(cli: &CliAgent) -> Value {
    json!([
        cli.preset.map(|preset| format!("{preset:?}")),
        cli.image,
        format!("{:?}", cli.call_format),
        cli.bare,
        cli.system,
        cli.command,
        cli.task,
        env(&cli.env),
    ])
}

fn env(variables: &[EnvVariable]) -> Vec<[&str; 2]> {
    variables
        .iter()
        .map(|it| [it.name.as_str(), it.value.as_str()])
        .collect()
}

fn millis(period: Period) -> u64 {
    u64::try_from(period.duration().as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
