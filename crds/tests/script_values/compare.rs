//! What is wrong between a manifest and the rows of its script.

use std::collections::BTreeSet;

use serde_json::Value;

use super::{
    manifests::Manifests,
    rows::{Row, Values},
};

/// Every fault, as a sentence with the manifest's name.
pub fn faults(manifests: &Manifests, manifest: &str, values: &Values) -> Vec<String> {
    let mut faults = Vec::new();
    match &values.because {
        Some(reason) => {
            faults.extend(of_reason(reason));
            if !values.settings.is_empty() {
                faults.push("it has settings, and says that there is no script".to_owned());
            }
        }
        None => {
            let rows = values.settings.iter();
            faults.extend(rows.filter_map(|row| of_row(manifests, manifest, values, row)));
            faults.extend(twice(values));
            faults.extend(not_named(manifests, manifest, values));
        }
    }
    faults.into_iter().map(|fault| format!("{manifest}: {fault}")).collect()
}

/// What is wrong with a row.
fn of_row(manifests: &Manifests, manifest: &str, values: &Values, row: &Row) -> Option<String> {
    let fault = |text: &str| Some(format!("{}: {text}", row.title()));
    let in_script = !row.name.all().is_empty();
    if row.name.all().iter().any(String::is_empty) || in_script != row.script.is_some() {
        return fault("a setting of the script has a name and a value there");
    }
    if in_script && !values.sources.contains_key(row.source()) {
        return fault(&format!("there is no source {:?}", row.source()));
    }
    if let Some(wrong) = row.because.as_deref().and_then(of_reason) {
        return fault(&wrong);
    }
    let Some(field) = &row.field else {
        return match (&row.because, in_script && row.means.is_none() && row.of.is_none()) {
            (None, _) => fault("no field has it, and no reason is given"),
            (_, false) => {
                fault("only a setting of the script may lack a field, and then it has no `means` and no `of`")
            }
            _ => None,
        };
    };
    let here = match manifests.value(manifest, row.of.as_deref(), field) {
        Ok(value) => value,
        Err(error) => return fault(&error),
    };
    match (row.wanted(), &row.because) {
        (None, None) => fault("only the manifest has it, and no reason is given"),
        (Some(wanted), None) if !equal(wanted, &here) => fault(&format!(
            "the script has {wanted}, the manifest {here} in {field}, and no reason is given"
        )),
        (Some(wanted), Some(_)) if equal(wanted, &here) => fault(&format!(
            "a reason is given, but script and manifest have the same value {here} in {field}"
        )),
        _ => None,
    }
}

/// What is wrong with the words of a reason.
fn of_reason(reason: &str) -> Option<String> {
    let sentence = reason.ends_with('.') && !reason.contains('\n') && !reason.trim_end_matches('.').contains(". ");
    (!sentence).then(|| format!("{reason:?} is no single sentence"))
}

/// Equal values, where 1 and 1.0 are the same number.
fn equal(one: &Value, other: &Value) -> bool {
    match (one, other) {
        (Value::Number(one), Value::Number(other)) => one.as_f64() == other.as_f64(),
        (Value::Array(one), Value::Array(other)) => {
            one.len() == other.len() && one.iter().zip(other).all(|(one, other)| equal(one, other))
        }
        _ => one == other,
    }
}

/// Rows that say the same twice.
fn twice(values: &Values) -> Vec<String> {
    let mut seen = BTreeSet::new();
    let rows = values.settings.iter();
    rows.filter(|row| !seen.insert((row.title(), row.source().to_owned(), row.of.clone(), row.field.clone())))
        .map(|row| format!("{}: two rows are about the same field", row.title()))
        .collect()
}

/// Values of the manifest that no row names.
fn not_named(manifests: &Manifests, manifest: &str, values: &Values) -> Vec<String> {
    let mut faults = Vec::new();
    for object in manifests.objects(manifest) {
        let about = |row: &&Row| match &row.of {
            Some(of) => object.is(of),
            None => object.is_run(),
        };
        let named: Vec<&str> = values
            .settings
            .iter()
            .filter(about)
            .filter_map(|row| row.field.as_deref())
            .collect();
        let covers = |leaf: &str, field: &str| match leaf.strip_prefix(field) {
            Some(rest) => rest.is_empty() || rest.starts_with(['.', '[']),
            None => false,
        };
        let unnamed = object.leaves().into_iter();
        let unnamed = unnamed.filter(|leaf| !named.iter().any(|field| covers(leaf, field)));
        faults.extend(unnamed.map(|leaf| format!("no row names {leaf} of {}", object.title())));
    }
    faults
}

#[cfg(test)]
mod tests {
    use super::*;

    const RUN: &str = "
apiVersion: grpo.dev/v1alpha1
kind: GrpoRun
metadata: {name: a}
spec:
  model: {image: {reference: a}}
  rollout: {prompts: 4}
  store: {persistentVolumeClaim: {claimName: b}}
";
    /// Rows that name all that the run sets.
    const NAMED: &str = "{field: model, because: A.}, {field: store, because: B.}";

    fn found(rows: &str) -> Vec<String> {
        let text =
            format!("{{sources: {{script: {{repository: a/b, commit: c, file: d}}}}, settings: [{NAMED}, {rows}]}}");
        faults(&Manifests::one("a", RUN), "a", &serde_yaml_ng::from_str(&text).unwrap())
    }

    #[test]
    fn a_difference_without_a_reason_is_a_fault() {
        assert_eq!(found("{name: batch, script: 4.0, field: rollout.prompts}"), [""; 0]);
        assert_eq!(
            found("{name: batch, script: 8, field: rollout.prompts}"),
            ["a: batch: the script has 8, the manifest 4 in rollout.prompts, and no reason is given"]
        );
        assert_eq!(
            found("{name: batch, script: 8, field: rollout.prompts, because: It is too many.}"),
            [""; 0]
        );
        assert_eq!(
            found("{name: batch, script: 2 + 2, means: 4, field: rollout.prompts}"),
            [""; 0]
        );
    }

    #[test]
    fn a_reason_without_a_difference_is_a_fault() {
        assert_eq!(
            found("{name: batch, script: 4, field: rollout.prompts, because: It is so.}"),
            ["a: batch: a reason is given, but script and manifest have the same value 4 in rollout.prompts"]
        );
    }

    #[test]
    fn defaults_and_optional_fields_count() {
        let all = "{name: batch, script: 4, field: rollout.prompts}, {name: n, script: 8, field: rollout.samples}";
        assert_eq!(found(all), [""; 0]);
        let open = "{name: kl, script: off, means: left out, field: algorithm.kl}";
        assert_eq!(found(&format!("{all}, {open}")), [""; 0]);
    }

    #[test]
    fn a_field_that_does_not_exist_is_a_fault() {
        let all = "{name: batch, script: 4, field: rollout.prompts}";
        let typo = "{name: n, script: 8, field: rollout.sample}";
        assert_eq!(
            found(&format!("{all}, {typo}")),
            ["a: n: GrpoRun has no field spec.rollout.sample"]
        );
        let pool = "{name: n, script: 8, of: InferencePool b, field: replicas}";
        assert_eq!(found(&format!("{all}, {pool}")), ["a: n: there is no InferencePool b"]);
    }

    #[test]
    fn settings_without_a_field_and_values_without_a_row_are_faults() {
        let all = "{name: batch, script: 4, field: rollout.prompts}";
        assert_eq!(
            found(&format!("{all}, {{name: ray, script: on}}")),
            ["a: ray: no field has it, and no reason is given"]
        );
        assert_eq!(
            found("{name: ray, script: on, because: There is no Ray.}"),
            ["a: no row names rollout.prompts of GrpoRun a"]
        );
        assert_eq!(
            found("{field: rollout}"),
            ["a: rollout: only the manifest has it, and no reason is given"]
        );
        assert_eq!(
            found(&format!("{all}, {all}")),
            ["a: batch: two rows are about the same field"]
        );
        assert_eq!(
            found(&format!("{all}, {{name: ray, script: on, source: b, because: C.}}")),
            ["a: ray: there is no source \"b\""]
        );
        assert_eq!(
            found(&format!("{all}, {{name: ray, script: on, because: no}}")),
            ["a: ray: \"no\" is no single sentence"]
        );
    }
}
