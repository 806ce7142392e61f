//! The summary of a run for `kubectl describe`: the objective in one line, and its pods.

use grpo_crds::{
    algorithm::{
        Aggregation, Algorithm, Correction, Decay, Denominator, Estimator, Kl, KlEstimator, KlGradient, KlPlacement,
        Loss, OldLogprobs, Ratio, StandardDeviation,
    },
    grpo_run::{GrpoRunSpec, Mode, PlannedPods},
};
use k8s_openapi::api::core::v1::ResourceRequirements;

use super::{colocation::SharedGpus, observation::RunObservation};
use crate::{names::role, pods::PodFacts};

/// The objective in one line, with the effect of defaults. `None` for a run that does not train.
pub fn objective(spec: &GrpoRunSpec) -> Option<String> {
    match spec.mode {
        Mode::Train => Some(of_algorithm(&spec.algorithm)),
        Mode::Finetune => Some(supervised(&spec.algorithm)),
        Mode::Evaluate | Mode::Validate => None,
    }
}

fn supervised(algorithm: &Algorithm) -> String {
    // A conversation is one row.
    let by_rows = Algorithm {
        denominator: Denominator::Row,
        ..algorithm.clone()
    };
    let parts = [
        "-logprob of answers".to_owned(),
        aggregation(&by_rows),
        steps(algorithm),
        optimizer(algorithm),
    ];
    parts.join("; ")
}

fn of_algorithm(algorithm: &Algorithm) -> String {
    let mut parts = vec![advantage(algorithm), ratio(algorithm)];
    parts.extend(algorithm.correction.as_ref().map(correction));
    parts.push(algorithm.kl.as_ref().map_or_else(|| "no KL".to_owned(), kl));
    if algorithm.entropy_coefficient > 0.0 {
        parts.push(format!("+ {} x entropy", algorithm.entropy_coefficient));
    }
    parts.push(aggregation(algorithm));
    if algorithm.mask_overlong {
        parts.push("cut episodes only in the baseline".to_owned());
    }
    parts.push(steps(algorithm));
    parts.push(optimizer(algorithm));
    if let Some(control) = algorithm.control {
        parts.push(format!("CONTROL {control:?}: not meant to learn"));
    }
    parts.join("; ")
}

fn advantage(algorithm: &Algorithm) -> String {
    let difference = match algorithm.advantage.estimator {
        Estimator::Group => "reward - group mean",
        Estimator::LeaveOneOut => "reward - mean of the others",
        Estimator::StepWise => "turn reward - mean of the group's turns of that number",
    };
    match algorithm.advantage.std {
        StandardDeviation::None => format!("advantage = {difference}"),
        StandardDeviation::Population => format!("advantage = ({difference}) / population std"),
        StandardDeviation::Unbiased => format!("advantage = ({difference}) / unbiased std"),
        StandardDeviation::Batch => format!("advantage = ({difference}) / std of the batch"),
    }
}

fn ratio(algorithm: &Algorithm) -> String {
    let clip = &algorithm.clip;
    let old = match algorithm.old_logprobs {
        OldLogprobs::Engine => "the engine's logprobs",
        OldLogprobs::Recompute => "recomputed logprobs",
    };
    // If old logprobs are recomputed under the trained weights, the ratio is 1 in the only step.
    let inert =
        algorithm.old_logprobs == OldLogprobs::Recompute && algorithm.mini_batches == 1 && algorithm.epochs == 1;
    let inert = if inert { " (inert: one step a batch)" } else { "" };
    let ratio = match algorithm.ratio {
        Ratio::Token => "ratio",
        Ratio::Sequence => "mean ratio of a sequence",
    };
    let loss = match algorithm.loss {
        Loss::Clipped => "",
        Loss::Cispo => "CISPO: ",
    };
    let dual = clip.dual.map(|dual| format!(", dual {dual}")).unwrap_or_default();
    format!(
        "{loss}{ratio} to {old} in [{}, {}]{dual}{inert}",
        short(1.0 - clip.low),
        short(1.0 + clip.high)
    )
}

fn correction(correction: &Correction) -> String {
    let mut words = Vec::new();
    if let Some(band) = &correction.truncated_importance {
        words.push(format!("TIS [{}, {}]", band.low, band.high));
    }
    if let Some(band) = &correction.ice_pop {
        words.push(format!("IcePop [{}, {}]", band.low, band.high));
    }
    if correction.level == Ratio::Sequence {
        words.push("of whole sequences".to_owned());
    }
    let mut words = vec![words.join(" ")];
    words.retain(|word| !word.is_empty());
    if let Some(bound) = correction.sequence_mask {
        words.push(format!("sequence mask {bound}"));
    }
    if let Some(band) = &correction.geometric_mask {
        words.push(format!("geometric mask [{}, {}]", band.low, band.high));
    }
    words.join(" + ")
}

fn kl(kl: &Kl) -> String {
    let estimator = match kl.estimator {
        KlEstimator::K1 => "k1",
        KlEstimator::K2 => "k2",
        KlEstimator::K3 => "k3",
        KlEstimator::Abs => "|k1|",
        KlEstimator::SquaredRatio => "(1/r - 1)^2 / 2",
    };
    let place = match kl.placement {
        KlPlacement::Loss => "in the loss",
        KlPlacement::Reward => "in the reward",
    };
    let gradient = match kl.gradient {
        KlGradient::Estimator => "",
        KlGradient::StraightThrough => " with the gradient of k2",
        KlGradient::ImportanceWeighted => " weighed by the ratio",
    };
    format!("{} x KL {estimator} to the base {place}{gradient}", kl.coefficient)
}

fn aggregation(algorithm: &Algorithm) -> String {
    let unit = match algorithm.denominator {
        Denominator::Episode => "episodes",
        Denominator::Row => "rows",
    };
    match (algorithm.aggregation, algorithm.aggregation_length) {
        (Aggregation::TokenMean, _) => "mean over tokens".to_owned(),
        (Aggregation::TokenSum, _) => "sum over tokens".to_owned(),
        (Aggregation::SequenceMean, _) => format!("mean over {unit} of token means"),
        (Aggregation::SequenceSum, None) => format!("mean over {unit} of token sums"),
        (Aggregation::SequenceSum, Some(length)) => format!("mean over {unit} of token sums / {length}"),
    }
}

fn steps(algorithm: &Algorithm) -> String {
    let steps = match (algorithm.mini_batches, algorithm.epochs) {
        (1, 1) => "1 step".to_owned(),
        (steps, 1) => format!("{steps} steps"),
        (steps, epochs) => format!("{epochs} epochs of {steps} steps"),
    };
    format!("{steps} a batch")
}

fn optimizer(algorithm: &Algorithm) -> String {
    let schedule = &algorithm.schedule;
    let mut warmup = match schedule.warmup_steps {
        0 => String::new(),
        steps => format!(", warm-up {steps}"),
    };
    if schedule.warmup_ratio > 0.0 {
        warmup += &format!(", warm-up {} of the steps", short(schedule.warmup_ratio));
    }
    let decay = match schedule.decay {
        Decay::Constant => String::new(),
        Decay::Linear => format!(", linear to {}", schedule.final_ratio),
        Decay::Cosine => format!(", cosine to {}", schedule.final_ratio),
    };
    let clip = match algorithm.gradient_clip {
        0.0 => String::new(),
        norm => format!(", gradient norm <= {norm}"),
    };
    format!("AdamW {:e}{warmup}{decay}{clip}", algorithm.learning_rate)
}

/// Formats a number without the extra digits of binary fractions.
fn short(number: f64) -> String {
    let text = format!("{number:.6}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// The pods of the run and of its own pools. For a run at rest no pod counts as running, even if it is still ending.
pub fn plan(seen: &RunObservation, at_rest: bool) -> Vec<PlannedPods> {
    let mut plan = planned(seen);
    if at_rest {
        for pods in &mut plan {
            pods.running = pods.running.map(|_| 0);
        }
    }
    plan
}

fn planned(seen: &RunObservation) -> Vec<PlannedPods> {
    let spec = &seen.run.spec;
    let shared = SharedGpus::of(spec).is_some();
    let mut plan = vec![PlannedPods {
        role: role::DRIVER.to_owned(),
        pods: "1".to_owned(),
        each: each(
            spec.driver.as_ref().and_then(|driver| driver.resources.as_ref()),
            0,
            false,
        ),
        running: Some(running(&seen.driver_pods)),
    }];
    if let Some(trainer) = spec.trainer.as_ref().filter(|_| spec.mode.needs_trainer()) {
        plan.push(PlannedPods {
            role: role::TRAINER.to_owned(),
            pods: trainer.nodes.to_string(),
            each: each(trainer.resources.as_ref(), trainer.gpus_per_node, shared),
            running: Some(running(&seen.trainer_pods)),
        });
    }
    if let Some(pool) = spec.inference.pool.as_ref().filter(|_| spec.mode.needs_engines()) {
        let nodes = pool.engine.nodes();
        let ready = seen.inference.as_ref().and_then(|pool| pool.status.as_ref());
        plan.push(PlannedPods {
            role: role::ENGINE.to_owned(),
            pods: (pool.replicas * nodes).to_string(),
            each: each(pool.resources.as_ref(), pool.engine.gpus_per_node(), shared),
            running: Some(ready.map_or(0, |status| status.ready_replicas * nodes)),
        });
    }
    if let Some(pool) = spec.sandboxes.pool.as_ref().filter(|_| spec.mode.needs_sandboxes()) {
        plan.push(PlannedPods {
            role: role::SANDBOX.to_owned(),
            pods: format!("0-{}", pool.max),
            each: each(Some(&pool.bounded_resources()), 0, false),
            running: None,
        });
    }
    plan
}

fn running(pods: &[PodFacts]) -> u32 {
    let running = pods.iter().filter(|pod| pod.is_ready()).count();
    u32::try_from(running).unwrap_or(u32::MAX)
}

/// `8 GPUs, cpu 96, memory 1200Gi`, or `8 shared GPUs` where trainer and engines take turns.
fn each(resources: Option<&ResourceRequirements>, gpus: u32, shared: bool) -> Option<String> {
    let mut parts = Vec::new();
    let how = if shared { "shared " } else { "" };
    match gpus {
        0 => {}
        1 => parts.push(format!("1 {how}GPU")),
        n => parts.push(format!("{n} {how}GPUs")),
    }
    let requests = resources.and_then(|resources| resources.requests.as_ref().or(resources.limits.as_ref()));
    for (name, quantity) in requests.into_iter().flatten() {
        parts.push(format!("{name} {}", quantity.0));
    }
    (!parts.is_empty()).then(|| parts.join(", "))
}
