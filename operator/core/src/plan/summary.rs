//! The summary of a plan: one line for the pods of each group, one for each sandbox pool, and the total of pods and
//! GPUs.

use grpo_crds::SandboxPool;

use super::{
    pods::PodGroup,
    source::{Objects, Unreadable},
};

pub fn summary(objects: &Objects, pods: &[PodGroup]) -> Result<Vec<String>, Unreadable> {
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
    let gpus: i64 = pods.iter().map(|group| group.gpus * group.count as i64).sum();
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
    let gpus = match (group.gpus, group.count) {
        (0, _) => String::new(),
        (1, 1) => " with 1 GPU".to_owned(),
        (gpus, 1) => format!(" with {gpus} GPUs"),
        (1, _) => " with 1 GPU each".to_owned(),
        (gpus, _) => format!(" with {gpus} GPUs each"),
    };
    format!("{} {} {pods} of {}{gpus}", group.count, group.role, group.of)
}
