//! SandboxPools: how long leases wait, what sandboxes cost, and what was lost.

use super::{Dashboard, Section, lines, number, stack};

pub fn dashboard() -> Dashboard {
    Dashboard {
        name: "sandboxes",
        title: "GRPO sandboxes",
        description: "Gateways of SandboxPools.",
        variables: &[
            ("namespace", "grpo_gateway_starts_total"),
            ("sandbox_pool", "grpo_gateway_starts_total"),
        ],
        sections: vec![leases(), sandboxes(), images(), ledger()],
    }
}

fn leases() -> Section {
    Section {
        title: "Leases",
        panels: vec![
            stack(
                "Leases per second",
                "none",
                "With a pod that was ready before the request (warm), and with one that was started for it (cold).",
                &[
                    (
                        "warm",
                        "sum(rate(grpo_gateway_leases_warm_total{ON}[$__rate_interval]))",
                    ),
                    (
                        "cold",
                        "sum(rate(grpo_gateway_leases_cold_total{ON}[$__rate_interval]))",
                    ),
                ],
            ),
            lines(
                "Wait for a lease, 95 %",
                "s",
                "From the request to the lease. warm is milliseconds; cold includes the start of a pod; queued waits for a place: raise max of the pool.",
                &[(
                    "{{path}}",
                    "histogram_quantile(0.95, sum by (path, le) (rate(grpo_gateway_lease_wait_seconds_bucket{ON}[5m])))",
                )],
            ),
            lines(
                "Leases in the queue",
                "none",
                "By priority. Graders go before agents.",
                &[("{{priority}}", "sum by (priority) (grpo_gateway_leases_waiting{ON})")],
            ),
        ],
    }
}

fn sandboxes() -> Section {
    Section {
        title: "Sandboxes",
        panels: vec![
            stack(
                "Sandboxes",
                "none",
                "Pods by state.",
                &[("{{state}}", "sum by (state) (grpo_gateway_sandboxes{ON})")],
            ),
            lines(
                "Commands, 95 %",
                "s",
                "Duration at the gateway: with an outcome from sandboxd, or with an error.",
                &[(
                    "{{answer}}",
                    "histogram_quantile(0.95, sum by (answer, le) (rate(grpo_gateway_exec_seconds_bucket{ON}[5m])))",
                )],
            ),
            lines(
                "Commands per second",
                "none",
                "At the gateway.",
                &[(
                    "{{answer}}",
                    "sum by (answer) (rate(grpo_gateway_exec_seconds_count{ON}[$__rate_interval]))",
                )],
            ),
            stack(
                "Faults",
                "none",
                "In 15 minutes, by kind and by whose fault they are. Infrastructure becomes a void attempt, Workload is the policy's own.",
                &[
                    (
                        "{{fault}} {{kind}}",
                        "sum by (fault, kind) (increase(grpo_gateway_faults_total{ON}[15m]))",
                    ),
                    (
                        "leases lost to the infrastructure",
                        "sum(increase(grpo_gateway_leases_lost_to_infrastructure_total{ON}[15m]))",
                    ),
                ],
            ),
            stack(
                "Pods per second",
                "none",
                "Pods that the API server accepted to create and delete, and those that a quota or a rule refused.",
                &[
                    (
                        "{{verb}}",
                        "sum by (verb) (rate(grpo_gateway_pod_writes_total{ON}[$__rate_interval]))",
                    ),
                    (
                        "refused",
                        "sum(rate(grpo_gateway_pods_refused_total{ON}[$__rate_interval]))",
                    ),
                ],
            ),
            number(
                "Network policy enforced",
                "bool_yes_no",
                "Yes: a probe has shown that sandboxes reach nothing.",
                "min by (namespace, sandbox_pool) (grpo_gateway_egress_blocked{ON})",
            ),
        ],
    }
}

fn images() -> Section {
    Section {
        title: "Images and gateway",
        panels: vec![
            lines(
                "Images that cannot be pulled",
                "none",
                "Their tasks become void. GET /v1/pool/troubles lists them with the registry's answer.",
                &[(
                    "{{namespace}}/{{sandbox_pool}}",
                    "max by (namespace, sandbox_pool) (grpo_gateway_images_left_alone{ON})",
                )],
            ),
            lines(
                "Prefetched images",
                "none",
                "Images that nodes pull before a sandbox needs them.",
                &[("{{state}}", "sum by (state) (grpo_gateway_images_prefetched{ON})")],
            ),
            lines(
                "Starts of the gateway",
                "none",
                "A step is a restart: leases and commands waited meanwhile.",
                &[(
                    "{{namespace}}/{{sandbox_pool}}",
                    "max by (namespace, sandbox_pool) (grpo_gateway_starts_total{ON})",
                )],
            ),
            lines(
                "Relays",
                "none",
                "Ports of sandboxes that lead to a service, such as the engine of a command-line agent.",
                &[(
                    "{{namespace}}/{{sandbox_pool}}",
                    "sum by (namespace, sandbox_pool) (grpo_gateway_relays{ON})",
                )],
            ),
        ],
    }
}

fn ledger() -> Section {
    Section {
        title: "Ledger",
        panels: vec![
            lines(
                "Until a lease is durable, 95 %",
                "s",
                "From the decision until the API server has it.",
                &[(
                    "{{namespace}}/{{sandbox_pool}}",
                    "histogram_quantile(0.95, sum by (namespace, sandbox_pool, le) (rate(grpo_gateway_ledger_commit_seconds_bucket{ON}[5m])))",
                )],
            ),
            lines(
                "Until a sandbox is bound, 95 %",
                "s",
                "From then until sandboxd knows its lease.",
                &[(
                    "{{namespace}}/{{sandbox_pool}}",
                    "histogram_quantile(0.95, sum by (namespace, sandbox_pool, le) (rate(grpo_gateway_bind_seconds_bucket{ON}[5m])))",
                )],
            ),
            lines(
                "Leases of an update",
                "none",
                "Leases that one update of the ledger made durable, and repeated updates.",
                &[
                    (
                        "leases",
                        "sum(rate(grpo_gateway_ledger_leases_total{ON}[15m])) / sum(rate(grpo_gateway_ledger_writes_total{ON}[15m]))",
                    ),
                    (
                        "repeated updates",
                        "sum(increase(grpo_gateway_ledger_retries_total{ON}[15m]))",
                    ),
                ],
            ),
        ],
    }
}
