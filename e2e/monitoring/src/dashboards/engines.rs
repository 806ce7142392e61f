//! Engines of InferencePools: the agents' own metrics, and the same numbers of vLLM, SGLang and the embedded engine,
//! each under the engine's own name.

use super::{Dashboard, Section, lines, number, stack};

pub fn dashboard() -> Dashboard {
    Dashboard {
        name: "engines",
        title: "GRPO engines",
        description: "Engine replicas of InferencePools and the agents before them.",
        variables: &[
            ("namespace", "grpo_agent_serves"),
            ("inference_pool", "grpo_agent_serves"),
        ],
        sections: vec![weights(), work()],
    }
}

fn weights() -> Section {
    Section {
        title: "Weights",
        panels: vec![
            number(
                "Replicas that serve",
                "none",
                "They serve some version.",
                "sum by (namespace, inference_pool) (grpo_agent_serves{ON})",
            ),
            number(
                "Replicas behind",
                "none",
                "They serve another version than was ordered. During a switch that is normal.",
                "sum by (namespace, inference_pool) (grpo_agent_behind{ON})",
            ),
            number(
                "Replicas that failed to load",
                "none",
                "The agent's log and the pool's status have the error.",
                "sum by (namespace, inference_pool) (grpo_agent_failed{ON})",
            ),
            stack(
                "Bytes of weights per second",
                "Bps",
                "From the run's driver, and from other replicas.",
                &[
                    ("driver", "sum(rate(grpo_agent_pulled_source_bytes_total{ON}[5m]))"),
                    ("replicas", "sum(rate(grpo_agent_pulled_agents_bytes_total{ON}[5m]))"),
                ],
            ),
            stack(
                "Files from deltas",
                "none",
                "In 15 minutes: files made from an earlier version and a delta, and files that had to be pulled whole after all.",
                &[
                    ("made", "sum(increase(grpo_agent_made_files_total{ON}[15m]))"),
                    ("not made", "sum(increase(grpo_agent_unmade_files_total{ON}[15m]))"),
                ],
            ),
            stack(
                "Completions per second",
                "none",
                "Answered by the engine, and refused by code. A refusal of another version is part of each switch.",
                &[
                    (
                        "answered",
                        "sum(rate(grpo_agent_completions_passed_total{ON}[$__rate_interval]))",
                    ),
                    (
                        "{{code}}",
                        "sum by (code) (rate(grpo_agent_completions_refused_total{ON}[$__rate_interval]))",
                    ),
                ],
            ),
        ],
    }
}

fn work() -> Section {
    Section {
        title: "Work",
        panels: vec![
            lines(
                "Running requests",
                "none",
                "By replica.",
                &[(
                    "{{pod}}",
                    "grpo_engine_rows_running{ON} or {ON,__name__=\"vllm:num_requests_running\"} or {ON,__name__=\"sglang:num_running_reqs\"}",
                )],
            ),
            lines(
                "Waiting requests",
                "none",
                "By replica. Many of them: the run's concurrency is above what the replicas can hold.",
                &[(
                    "{{pod}}",
                    "grpo_engine_requests_waiting{ON} or {ON,__name__=\"vllm:num_requests_waiting\"} or {ON,__name__=\"sglang:num_queue_reqs\"}",
                )],
            ),
            lines(
                "Sampled tokens per second",
                "none",
                "By replica.",
                &[(
                    "{{pod}}",
                    "rate(grpo_engine_generation_tokens_total{ON}[5m]) or rate({ON,__name__=\"vllm:generation_tokens_total\"}[5m]) or rate({ON,__name__=\"sglang:generation_tokens_total\"}[5m])",
                )],
            ),
            lines(
                "Prompt tokens per second",
                "none",
                "By replica, cached ones included.",
                &[(
                    "{{pod}}",
                    "rate(grpo_engine_prompt_tokens_total{ON}[5m]) or rate({ON,__name__=\"vllm:prompt_tokens_total\"}[5m]) or rate({ON,__name__=\"sglang:prompt_tokens_total\"}[5m])",
                )],
            ),
            lines(
                "Prompt tokens from the prefix cache",
                "percentunit",
                "By replica. The driver sends the turns of an episode to one replica.",
                &[(
                    "{{pod}}",
                    "rate(grpo_engine_prefix_tokens_total{ON}[5m]) / rate(grpo_engine_prompt_tokens_total{ON}[5m]) or rate({ON,__name__=\"vllm:prefix_cache_hits_total\"}[5m]) / rate({ON,__name__=\"vllm:prefix_cache_queries_total\"}[5m]) or {ON,__name__=\"sglang:cache_hit_rate\"}",
                )],
            ),
            lines(
                "Use of the cache for keys and values",
                "percentunit",
                "By replica. The embedded engine counts what its running rows may come to need.",
                &[(
                    "{{pod}}",
                    "grpo_engine_kv_bytes{ON} / grpo_engine_kv_limit_bytes{ON} or {ON,__name__=\"vllm:kv_cache_usage_perc\"} or {ON,__name__=\"sglang:token_usage\"}",
                )],
            ),
            lines(
                "Keys and values of the embedded engine",
                "bytes",
                "By replica; vLLM and SGLang have a share of their cache instead.",
                &[("{{pod}}", "grpo_engine_kv_bytes{ON}")],
            ),
        ],
    }
}
