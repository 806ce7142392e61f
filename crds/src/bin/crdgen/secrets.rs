//! Every field of a spec that names a Secret, with the CEL that reads the names: the chart's admission policies ask for
//! each of them whether the author of the object may read the Secret (`templates/secrets.yaml`).
//!
//! The fields come from the schemas, so a new field is in the policy when the CRDs are written anew.

use std::collections::BTreeMap;
use std::error::Error;

use grpo_crds::crd;
use serde::Serialize;
use serde_json::Value;

/// Where the chart has them, below the chart's folder.
pub const FILE: &str = "secrets/names.yaml";

/// A field that names Secrets.
#[derive(Debug, Serialize)]
pub struct Field {
    /// As users write it: `spec.tasks.evaluate[].dataset.hub.tokenSecretRef`.
    pub field: String,
    /// CEL for the list of names; a name of an absent field is empty.
    pub names: String,
    /// Whether there may be several names.
    pub many: bool,
}

/// The fields of each resource, by its plural.
pub fn fields() -> Result<BTreeMap<String, Vec<Field>>, Box<dyn Error>> {
    let mut fields = BTreeMap::new();
    for crd in crd::all() {
        let mut paths = Vec::new();
        walk(&crd::schema(&crd)?["properties"]["spec"], "spec", &mut paths);
        let of_paths: Result<Vec<Field>, String> = paths.iter().map(|path| field(path)).collect();
        fields.insert(crd.spec.names.plural, of_paths?);
    }
    Ok(fields)
}

/// The file's text.
pub fn document() -> Result<String, Box<dyn Error>> {
    let yaml = serde_yaml_ng::to_string(&fields()?)?;
    Ok(format!(
        "# Written by grpo-crdgen from the types in crds/; do not edit.\n{yaml}"
    ))
}

/// Paths of all properties below a schema whose name tells that they name Secrets; `[]` follows a list.
fn walk(schema: &Value, path: &str, found: &mut Vec<String>) {
    for (name, property) in schema["properties"].as_object().into_iter().flatten() {
        let path = format!("{path}.{name}");
        match name.to_lowercase().contains("secret") {
            true if property["type"] == "array" => found.push(format!("{path}[]")),
            true => found.push(path),
            false => walk(property, &path, found),
        }
    }
    if schema["items"].is_object() {
        walk(&schema["items"], &format!("{path}[]"), found);
    }
}

fn field(path: &str) -> Result<Field, String> {
    let optional = |path: &str| path.replace('.', ".?");
    let many = path.contains("[]");
    let names = match *path.split("[]").collect::<Vec<_>>() {
        [whole] => format!("[object.?{}.?name.orValue('')]", optional(whole)),
        [list, rest] => format!(
            "object.?{}.orValue([]).map(one, one{}.?name.orValue(''))",
            optional(list),
            optional(rest)
        ),
        _ => return Err(format!("{path}: a Secret in a list of lists; write its CEL here")),
    };
    Ok(Field {
        field: path.trim_end_matches("[]").to_owned(),
        names,
        many,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn the_chart_has_every_field_that_names_a_secret() {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../charts/grpo-operator");
        let found = std::fs::read_to_string(path.join(FILE)).unwrap_or_default();
        assert!(
            found == document().unwrap(),
            "{FILE} does not follow from the types: run `make crds`"
        );
    }

    /// The lists of paths that the policies' template has under a variable, by resource.
    fn in_the_template(template: &str, variable: &str) -> BTreeMap<String, BTreeSet<String>> {
        let (_, rest) = template.split_once(&format!("${variable} := dict")).unwrap();
        let (lists, _) = rest.split_once("}}").unwrap();
        let lines = lists.lines().filter(|line| line.contains("(list "));
        lines
            .map(|line| {
                let mut texts = line.split('"').skip(1).step_by(2).map(str::to_owned);
                (texts.next().unwrap(), texts.collect())
            })
            .collect()
    }

    /// Paths of all properties below a schema that have this name, as the template writes them.
    fn named(schema: &Value, name: &str, path: &str, found: &mut BTreeSet<String>) {
        for (property, below) in schema["properties"].as_object().into_iter().flatten() {
            let path = match path {
                "" => property.clone(),
                path => format!("{path}.?{property}"),
            };
            if property == name {
                found.insert(path.clone());
            }
            named(below, name, &path, found);
        }
        if schema["items"].is_object() {
            named(&schema["items"], name, &format!("{path}[]"), found);
        }
    }

    /// Variables of the policy's commands, and of its command-line agent: sandboxes have no account.
    const WITHOUT_ACCOUNT: [&str; 2] = ["agent.?env", "agent.?cli.?env"];

    #[test]
    fn the_policies_know_every_list_of_variables_and_every_folder_of_a_node() {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../charts/grpo-operator");
        let template = std::fs::read_to_string(path.join("templates/secrets.yaml")).unwrap();
        for (name, variable) in [("env", "environments"), ("hostPath", "folders")] {
            let mut wanted = BTreeMap::new();
            for crd in crd::all() {
                let mut paths = BTreeSet::new();
                named(&crd::schema(&crd).unwrap()["properties"]["spec"], name, "", &mut paths);
                paths.retain(|path| !WITHOUT_ACCOUNT.contains(&path.as_str()));
                if !paths.is_empty() {
                    wanted.insert(crd.spec.names.plural, paths);
                }
            }
            assert!(!wanted.is_empty());
            assert_eq!(in_the_template(&template, variable), wanted, "${variable}");
        }
    }

    /// Paths of references by name, and of fields whose content the schema leaves open.
    fn references(schema: &Value, path: &str, found: &mut Vec<String>) {
        let properties = schema["properties"].as_object();
        let is_reference = properties.is_some_and(|properties| {
            let known = ["name", "key", "namespace"];
            properties.contains_key("name") && properties.keys().all(|name| known.contains(&name.as_str()))
        });
        let is_open = schema["x-kubernetes-preserve-unknown-fields"] == true
            || schema["additionalProperties"] == true
            || schema["additionalProperties"]["type"] == "object";
        if is_reference || is_open {
            found.push(path.to_owned());
        }
        for (name, property) in properties.into_iter().flatten() {
            references(property, &format!("{path}.{name}"), found);
        }
        if schema["items"].is_object() {
            references(&schema["items"], path, found);
        }
    }

    #[test]
    fn every_reference_has_a_name_by_which_those_to_secrets_are_found() {
        for crd in crd::all() {
            let mut found = Vec::new();
            references(&crd::schema(&crd).unwrap()["properties"]["spec"], "spec", &mut found);
            assert!(!found.is_empty());
            found.retain(|path| {
                let name = path.rsplit('.').next().unwrap_or_default().to_lowercase();
                !["secret", "configmap", "poolref"]
                    .iter()
                    .any(|kind| name.contains(kind))
            });
            assert_eq!(
                found, [""; 0],
                "do they name Secrets? then have `Secret` in the field's name"
            );
        }
    }

    #[test]
    fn names_in_lists_and_of_lists_are_read() {
        let all = fields().unwrap();
        let names = |resource: &str, field: &str| {
            let found = all[resource].iter().find(|one| one.field == field);
            found.map(|one| one.names.clone()).unwrap_or_default()
        };
        assert_eq!(
            names("inferencepools", "spec.engine.external.apiKeySecretRef"),
            "[object.?spec.?engine.?external.?apiKeySecretRef.?name.orValue('')]"
        );
        assert_eq!(
            names("grporuns", "spec.imagePullSecrets"),
            "object.?spec.?imagePullSecrets.orValue([]).map(one, one.?name.orValue(''))"
        );
        assert_eq!(
            names("grporuns", "spec.tasks.evaluate[].dataset.hub.tokenSecretRef"),
            "object.?spec.?tasks.?evaluate.orValue([]).map(one, one.?dataset.?hub.?tokenSecretRef.?name.orValue(''))"
        );
    }
}
