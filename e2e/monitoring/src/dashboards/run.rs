//! One run: is it learning, how fast, and what was lost.

use super::{Dashboard, Section, lines, number, stack};

pub fn dashboard() -> Dashboard {
    Dashboard {
        name: "run",
        title: "GRPO run",
        description: "Rollouts and training of GrpoRuns: what drivers and trainers count since their start. The store has all iterations (kubectl grpo ui).",
        variables: &[("namespace", "grpo_driver_iteration"), ("run", "grpo_driver_iteration")],
        sections: vec![progress(), rollouts(), losses(), speed()],
    }
}

fn progress() -> Section {
    Section {
        title: "Progress",
        panels: vec![
            number(
                "Iteration",
                "none",
                "The iteration that the driver works on.",
                "max by (namespace, run) (grpo_driver_iteration{ON})",
            ),
            number(
                "Trainer step",
                "none",
                "The last step that the trainer finished.",
                "max by (namespace, run) (grpo_trainer_step{ON})",
            ),
            number(
                "Engines with the newest weights",
                "percentunit",
                "Share of the known engine replicas that serve the promoted weights.",
                "max by (namespace, run) (grpo_driver_replicas_updated{ON}) / max by (namespace, run) (grpo_driver_replicas{ON})",
            ),
            lines(
                "Mean reward",
                "none",
                "Of the batch of the last step, as the trainer computes it.",
                &[(
                    "{{namespace}}/{{run}}",
                    "max by (namespace, run) (grpo_trainer_mean_reward{ON})",
                )],
            ),
            lines(
                "Resolved episodes",
                "percentunit",
                "Share of the episodes with a verdict, in the last 15 minutes.",
                &[(
                    "{{namespace}}/{{run}}",
                    "sum by (namespace, run) (rate(grpo_driver_episodes_total{ON,outcome=\"Resolved\"}[15m])) / sum by (namespace, run) (rate(grpo_driver_episodes_total{ON}[15m]))",
                )],
            ),
            lines(
                "Informative groups",
                "none",
                "Groups of the last batch whose rewards differ: only they have a gradient. With few of them use rollout.dynamic, or other tasks.",
                &[
                    (
                        "{{namespace}}/{{run}} informative",
                        "max by (namespace, run) (grpo_trainer_groups_informative{ON})",
                    ),
                    (
                        "{{namespace}}/{{run}} without signal",
                        "max by (namespace, run) (grpo_trainer_groups_zero_variance{ON})",
                    ),
                ],
            ),
        ],
    }
}

fn rollouts() -> Section {
    Section {
        title: "Rollouts",
        panels: vec![
            stack(
                "Episodes per second",
                "none",
                "Episodes with a verdict, by outcome.",
                &[(
                    "{{outcome}}",
                    "sum by (outcome) (rate(grpo_driver_episodes_total{ON}[$__rate_interval]))",
                )],
            ),
            lines(
                "Sampled tokens per second",
                "none",
                "Tokens of episodes with a verdict. They are counted when the episode ends.",
                &[(
                    "{{namespace}}/{{run}}",
                    "sum by (namespace, run) (rate(grpo_driver_sampled_tokens_total{ON}[5m]))",
                )],
            ),
            lines(
                "Turns of an episode",
                "none",
                "Mean over 15 minutes, and how many of them had no command that could run.",
                &[
                    (
                        "turns",
                        "sum(rate(grpo_driver_turns_total{ON}[15m])) / sum(rate(grpo_driver_episodes_total{ON}[15m]))",
                    ),
                    (
                        "format errors",
                        "sum(rate(grpo_driver_format_errors_total{ON}[15m])) / sum(rate(grpo_driver_episodes_total{ON}[15m]))",
                    ),
                ],
            ),
            stack(
                "Void attempts",
                "none",
                "Attempts in 15 minutes that the infrastructure lost, by reason. They are repeated and give no reward: see the page on outcomes.",
                &[(
                    "{{reason}}",
                    "sum by (reason) (increase(grpo_driver_voids_total{ON}[15m]))",
                )],
            ),
            stack(
                "Dropped groups",
                "none",
                "Groups in 15 minutes that no batch has, by reason.",
                &[(
                    "{{reason}}",
                    "sum by (reason) (increase(grpo_driver_groups_dropped_total{ON}[15m]))",
                )],
            ),
            stack(
                "Work done twice, or saved",
                "none",
                "In 15 minutes: attempts that later attempts replaced, and verdicts taken over from an identical patch.",
                &[
                    (
                        "replaced attempts",
                        "sum(increase(grpo_driver_attempts_left_total{ON}[15m]))",
                    ),
                    (
                        "reused verdicts",
                        "sum(increase(grpo_driver_reused_verdicts_total{ON}[15m]))",
                    ),
                ],
            ),
            stack(
                "Votes of the judge",
                "none",
                "Votes in 15 minutes, by what became of them. Without a judge: none.",
                &[(
                    "{{outcome}}",
                    "sum by (outcome) (increase(grpo_driver_judge_votes_total{ON}[15m]))",
                )],
            ),
        ],
    }
}

fn losses() -> Section {
    Section {
        title: "Training",
        panels: vec![
            lines(
                "Loss",
                "none",
                "Of the last step, and its parts.",
                &[
                    (
                        "{{namespace}}/{{run}} loss",
                        "max by (namespace, run) (grpo_trainer_loss{ON})",
                    ),
                    (
                        "{{namespace}}/{{run}} policy",
                        "max by (namespace, run) (grpo_trainer_policy_loss{ON})",
                    ),
                    (
                        "{{namespace}}/{{run}} KL",
                        "max by (namespace, run) (grpo_trainer_kl_loss{ON})",
                    ),
                ],
            ),
            lines(
                "Entropy",
                "none",
                "Mean entropy of the trained tokens, in nats. A fall to 0 is a collapsed policy.",
                &[(
                    "{{namespace}}/{{run}}",
                    "max by (namespace, run) (grpo_trainer_entropy{ON})",
                )],
            ),
            lines(
                "Gradient norm",
                "none",
                "Before clipping.",
                &[(
                    "{{namespace}}/{{run}}",
                    "max by (namespace, run) (grpo_trainer_gradient_norm{ON})",
                )],
            ),
            lines(
                "Clipped tokens",
                "percentunit",
                "Share of the trained tokens whose ratio the objective clips, those at the upper bound, and those left out.",
                &[
                    (
                        "{{namespace}}/{{run}} clipped",
                        "max by (namespace, run) (grpo_trainer_clip_fraction{ON})",
                    ),
                    (
                        "{{namespace}}/{{run}} at the upper bound",
                        "max by (namespace, run) (grpo_trainer_clip_fraction_high{ON})",
                    ),
                    (
                        "{{namespace}}/{{run}} left out",
                        "max by (namespace, run) (grpo_trainer_left_out_fraction{ON})",
                    ),
                ],
            ),
            lines(
                "Engine against trainer",
                "none",
                "Largest difference of one token's logprob. The tokens trained on are the tokens sampled: a large difference is another precision, version or template of the engine.",
                &[(
                    "{{namespace}}/{{run}}",
                    "max by (namespace, run) (grpo_trainer_logprob_gap_max{ON})",
                )],
            ),
            lines(
                "Staleness",
                "none",
                "Versions between the weights that sampled a token and those that were trained, at most.",
                &[(
                    "{{namespace}}/{{run}}",
                    "max by (namespace, run) (grpo_trainer_staleness_max{ON})",
                )],
            ),
        ],
    }
}

fn speed() -> Section {
    Section {
        title: "Speed of training",
        panels: vec![
            stack(
                "Seconds of a step",
                "s",
                "Of the last step: logprobs before the update, gradients, update.",
                &[
                    (
                        "{{namespace}}/{{run}} logprobs",
                        "max by (namespace, run) (grpo_trainer_observe_seconds{ON})",
                    ),
                    (
                        "{{namespace}}/{{run}} gradients",
                        "max by (namespace, run) (grpo_trainer_gradient_seconds{ON})",
                    ),
                    (
                        "{{namespace}}/{{run}} update",
                        "max by (namespace, run) (grpo_trainer_update_seconds{ON})",
                    ),
                ],
            ),
            lines(
                "Tokens per second",
                "none",
                "Of the last step: tokens of all rows, and those that were computed once for several rows.",
                &[
                    (
                        "{{namespace}}/{{run}} rows",
                        "max by (namespace, run) (grpo_trainer_row_tokens_per_second{ON})",
                    ),
                    (
                        "{{namespace}}/{{run}} computed",
                        "max by (namespace, run) (grpo_trainer_unique_tokens_per_second{ON})",
                    ),
                ],
            ),
            lines(
                "Operations per second",
                "flops",
                "Operations of the model's arithmetic, over all ranks. On GPUs grpo_trainer_mfu is their share of the peak.",
                &[(
                    "{{namespace}}/{{run}}",
                    "max by (namespace, run) (grpo_trainer_model_flops_per_second{ON})",
                )],
            ),
            lines(
                "Memory of a rank",
                "bytes",
                "What the memory model expects for a row of full length, and what the rank has.",
                &[
                    (
                        "{{namespace}}/{{run}} estimated",
                        "max by (namespace, run) (grpo_trainer_memory_estimated_bytes{ON})",
                    ),
                    (
                        "{{namespace}}/{{run}} available",
                        "max by (namespace, run) (grpo_trainer_memory_available_bytes{ON})",
                    ),
                ],
            ),
        ],
    }
}
