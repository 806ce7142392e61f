//! A pair for every CEL rule, from `rules.yaml`. An entry has a `base`, an `old` patch where the rule is about a
//! change, patches that make the `refused` and the `accepted` manifest, and what the refusal `says`. Patches are merged
//! as JSON (RFC 7386): null takes a field away.

use serde::Deserialize;
use serde_json::{Value, json};

use super::{Case, bases, merged};

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Entry {
    base: String,
    old: Option<Value>,
    refused: Value,
    accepted: Value,
    says: Vec<String>,
    /// Of a pool: the same holds for a pool that is described in a run.
    #[serde(default)]
    in_a_run: bool,
}

pub fn cases() -> Vec<Case> {
    let bases = bases();
    let entries: Vec<Entry> = serde_yaml_ng::from_str(include_str!("rules.yaml")).unwrap();
    let mut cases = Vec::new();
    for entry in entries {
        let base = &bases[&entry.base];
        let old = entry.old.map(|patch| merged(base, &patch));
        let from = old.as_ref().unwrap_or(base);
        let case = Case {
            name: format!("{}: {}", entry.base, entry.says.join(" ")),
            refused: merged(from, &entry.refused),
            accepted: merged(from, &entry.accepted),
            says: entry.says,
            old,
        };
        if entry.in_a_run {
            cases.push(Case {
                name: format!("in a run: {}", case.name),
                old: case.old.as_ref().map(|pool| in_a_run(&bases["train"], pool)),
                refused: in_a_run(&bases["train"], &case.refused),
                accepted: in_a_run(&bases["train"], &case.accepted),
                says: case.says.clone(),
            });
        }
        cases.push(case);
    }
    cases
}

/// A run whose pool is described in place as this one.
fn in_a_run(run: &Value, pool: &Value) -> Value {
    let mut run = run.clone();
    let mut spec = pool["spec"].clone();
    if pool["kind"] == "SandboxPool" {
        run["spec"]["sandboxes"] = json!({"pool": spec});
    } else {
        spec.as_object_mut().unwrap().remove("model");
        run["spec"]["inference"] = json!({"pool": spec});
        run["spec"]["algorithm"] = json!({"allowFrozenSampler": true});
    }
    run
}
