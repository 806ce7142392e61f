//! The summary of a plan: one line for the pods of each group, one for each sandbox pool, and the total of pods and
//! GPUs.

use grpo_crds::SandboxPool;

use super::{
    pods::PodGroup,
    source::{Objects, Unreadable},
};
use crate::device_claims::ClaimedGpus;

pub fn summary(objects: &Objects, pods: &[PodGroup], shared: &ClaimedGpus) -> Result<Vec<String>, Unreadable> {
    let mut lines: Vec<String> = pods.iter().map(line).collect();
    let sandboxes = objects.named::<SandboxPool>("SandboxPool")?;
    for pool in &sandboxes {
        let name = pool.metadata.name.as_deref().unwrap_or_default();
        lines.push(format!(
            "up to {} sandboxes of SandboxPool {name}, made when they are wanted",
            pool.spec.max
        ));
    }
    let count: usize = pods.iter().map(|group| group.count).sum();
    let own: i64 = pods.iter().map(|group| group.gpus * group.count as i64).sum();
    // However many pods share a GPU, the cluster needs it once.
    let gpus = own + shared.total();
    let besides = if sandboxes.is_empty() {
        ""
    } else {
        ", besides the sandboxes"
    };
    lines.push(format!("together {count} pods and {gpus} GPUs{besides}"));
    Ok(lines)
}

fn line(group: &PodGroup) -> String {
    let pods = if group.count == 1 { "pod" } else { "pods" };
    let how = if group.shared_gpus > 0 { "shared " } else { "" };
    let gpus = match (group.gpus + group.shared_gpus, group.count) {
        (0, _) => String::new(),
        (1, 1) => format!(" with 1 {how}GPU"),
        (gpus, 1) => format!(" with {gpus} {how}GPUs"),
        (1, _) => format!(" with 1 {how}GPU each"),
        (gpus, _) => format!(" with {gpus} {how}GPUs each"),
    };
    format!("{} {} {pods} of {}{gpus}", group.count, group.role, group.of)
}
