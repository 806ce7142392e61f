//! The operator: objects, pods, and whether it keeps up.

use super::{Dashboard, Section, lines, number, stack};

pub fn dashboard() -> Dashboard {
    Dashboard {
        name: "operator",
        title: "GRPO operator",
        description: "The operator of the cluster: its labels are kinds and states, never names of objects.",
        variables: &[],
        sections: vec![objects(), reconciles(), requests()],
    }
}

/// While one operator takes over from another, both count the same objects: hence the greatest count of a pod in each
/// installation (namespace), and the sum of installations.
fn objects() -> Section {
    Section {
        title: "Objects",
        panels: vec![
            number(
                "Operators that reconcile",
                "none",
                "1: one replica holds the leader lease.",
                "sum(grpo_operator_leader)",
            ),
            stack(
                "Runs",
                "none",
                "By phase.",
                &[(
                    "{{state}}",
                    "sum by (state) (max by (namespace, state) (grpo_operator_objects{kind=\"GrpoRun\"}))",
                )],
            ),
            stack(
                "Pools",
                "none",
                "By kind and state.",
                &[(
                    "{{kind}} {{state}}",
                    "sum by (kind, state) (max by (namespace, kind, state) (grpo_operator_objects{kind!=\"GrpoRun\"}))",
                )],
            ),
            stack(
                "Pods",
                "none",
                "By role and state.",
                &[(
                    "{{role}} {{state}}",
                    "sum by (role, state) (max by (namespace, role, state) (grpo_operator_pods))",
                )],
            ),
            stack(
                "Started attempts",
                "none",
                "Of drivers and trainers, in an hour. More than one for each run: something fails and is repeated.",
                &[("{{role}}", "sum by (role) (increase(grpo_operator_attempts_total[1h]))")],
            ),
            stack(
                "Failed pods",
                "none",
                "In an hour, by role and cause.",
                &[(
                    "{{role}} {{cause}}",
                    "sum by (role, cause) (increase(grpo_operator_pod_failures_total[1h]))",
                )],
            ),
        ],
    }
}

fn reconciles() -> Section {
    Section {
        title: "Reconciles",
        panels: vec![
            lines(
                "Reconciles per second",
                "none",
                "By kind.",
                &[(
                    "{{kind}}",
                    "sum by (kind) (rate(grpo_operator_reconcile_duration_seconds_count[$__rate_interval]))",
                )],
            ),
            lines(
                "Duration of a reconcile, 95 %",
                "s",
                "By kind.",
                &[(
                    "{{kind}}",
                    "histogram_quantile(0.95, sum by (kind, le) (rate(grpo_operator_reconcile_duration_seconds_bucket[5m])))",
                )],
            ),
            lines(
                "From a change to its reconcile, 95 %",
                "s",
                "It includes a delay of 0.1 s that combines changes.",
                &[(
                    "{{kind}}",
                    "histogram_quantile(0.95, sum by (kind, le) (rate(grpo_operator_reconcile_wait_seconds_bucket[5m])))",
                )],
            ),
            lines(
                "Objects that wait for their reconcile",
                "none",
                "By kind.",
                &[("{{kind}}", "sum by (kind) (grpo_operator_reconcile_waiting)")],
            ),
            stack(
                "Errors",
                "none",
                "Reconciles in 15 minutes that ended with an error, by the reason in the object's condition.",
                &[(
                    "{{kind}} {{reason}}",
                    "sum by (kind, reason) (increase(grpo_operator_reconcile_errors_total[15m]))",
                )],
            ),
            lines(
                "Objects that cannot be read",
                "none",
                "Their spec or status is not of this version.",
                &[(
                    "{{kind}}",
                    "sum by (kind) (grpo_operator_objects{state=\"Unreadable\"}) or on () vector(0)",
                )],
            ),
        ],
    }
}

fn requests() -> Section {
    Section {
        title: "API server and process",
        panels: vec![
            stack(
                "Requests per second",
                "none",
                "By verb and code; code 0 is no answer.",
                &[(
                    "{{verb}} {{code}}",
                    "sum by (verb, code) (rate(grpo_operator_api_requests_total[$__rate_interval]))",
                )],
            ),
            lines(
                "Duration of a request, 95 %",
                "s",
                "To the beginning of the answer, without watches.",
                &[(
                    "{{verb}}",
                    "histogram_quantile(0.95, sum by (verb, le) (rate(grpo_operator_api_request_duration_seconds_bucket{verb!=\"watch\"}[5m])))",
                )],
            ),
            lines(
                "Interrupted watches",
                "none",
                "In 15 minutes. They began again.",
                &[(
                    "{{kind}}",
                    "sum by (kind) (increase(grpo_operator_watch_interruptions_total[15m])) or on () vector(0)",
                )],
            ),
            lines(
                "Memory",
                "bytes",
                "Of the operator.",
                &[(
                    "{{pod}}",
                    "process_resident_memory_bytes and on (pod) grpo_operator_leader",
                )],
            ),
            lines(
                "Processors",
                "none",
                "Processors that the operator uses.",
                &[(
                    "{{pod}}",
                    "rate(process_cpu_seconds_total[5m]) and on (pod) grpo_operator_leader",
                )],
            ),
        ],
    }
}
