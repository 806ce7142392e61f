//! A pair for every bound in the schemas, made from them: one value just outside, one just inside.
//!
//! A bound is reached from the first of the bases in which the value just inside is accepted. What is missing on the
//! way there is made from the schema; other members of a union give way.

use serde_json::{Map, Value, json};

use super::{Case, bases, judge::Judge, schema_of};

/// Members of unions: where one is given, the others go.
const UNIONS: [&[&str]; 11] = [
    &["image", "persistentVolumeClaim", "hub", "objectStore"],
    &["volumeClaimTemplate", "persistentVolumeClaim", "objectStore"],
    &["bash", "tools", "cli"],
    &["preset", "command"],
    &["inline", "configMapRef"],
    &["truncatedImportance", "icePop"],
    &["pool", "poolRef"],
    &["embedded", "vllm", "sglang", "external"],
    &["claimName", "hostPath", "sizeLimit"],
    &["image", "version"],
    &["pods", "cidr"],
];

/// Kubernetes' own types bound themselves.
const FOREIGN: [&str; 4] = ["resources", "agentResources", "tolerations", "imagePullSecrets"];

/// Fields that a rule forbids in this place, with any value: a pool of a run's own serves no other namespace, and has
/// the image of the run's agent.
const FORBIDDEN: [&[&str]; 2] = [
    &["sandboxes", "pool", "allowedNamespaces"],
    &["sandboxes", "pool", "agentImage"],
];

/// For every pattern: what a text that matches begins and ends with. Between the two there may be any number of the
/// letter a.
const PATTERNS: [(&str, &str, &str); 17] = [
    (r"^[^/].*$", "a", ""),
    (r"^[A-Za-z0-9._-]+(/[A-Za-z0-9._-]+)*$", "a", ""),
    (r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", "a", ""),
    (r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$", "a", ""),
    (r"^[A-Za-z_][A-Za-z0-9_]*$", "a", ""),
    (r"^[-._a-zA-Z0-9]+$", "a", ""),
    (r"^[a-z0-9][a-z0-9_-]*$", "a", ""),
    (r"^[0-9]+\.[0-9]+\.[0-9]+[-a-z0-9.]*$", "1.2.3", ""),
    (r"^[A-Za-z0-9][A-Za-z0-9._@-]*$", "a", ""),
    (r"^https?://[^\s]+$", "https://a", ""),
    (r"^(s3|gs|az)://[A-Za-z0-9][A-Za-z0-9._-]*(/[^\s?#]*)?$", "s3://a", ""),
    (r"^https?://[^/?#\s@]+(/[^?#\s]*)?/v1/?$", "https://a", "/v1"),
    (r"^/[A-Za-z0-9]", "/a", ""),
    (
        r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?/[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$",
        "a/a",
        "",
    ),
    (r"^[A-Za-z0-9._-]{1,96}(/[A-Za-z0-9._-]{1,96})?$", "a", ""),
    (
        r"^https?://[a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*(:([1-9][0-9]{0,3}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5]))?(/[^@?#\s]*)?$",
        "http://a",
        "",
    ),
    (r"^[0-9a-fA-F:.]+/(1[6-9]|[2-9][0-9]|1[01][0-9]|12[0-8])$", "a", "/32"),
];

/// What no pattern allows.
const NEVER: &str = "/ ";

pub fn cases(judge: &Judge) -> Vec<Case> {
    let mut cases = Vec::new();
    for kind in ["GrpoRun", "InferencePool", "SandboxPool"] {
        let schema = schema_of(kind);
        let mut maker = Maker {
            kind,
            judge,
            bases: bases()
                .into_iter()
                .map(|(_, base)| base)
                .filter(|base| base["kind"] == kind)
                .collect(),
            cases: &mut cases,
            unreached: Vec::new(),
        };
        maker.walk(
            &mut Vec::new(),
            &schema["properties"]["spec"],
            &schema["properties"]["spec"],
        );
        let unreached = maker.unreached.join("\n");
        assert!(
            unreached.is_empty(),
            "no base accepts the value just inside; give one in bases.yaml:\n{unreached}"
        );
    }
    cases
}

struct Maker<'a> {
    kind: &'a str,
    judge: &'a Judge,
    bases: Vec<Value>,
    cases: &'a mut Vec<Case>,
    /// Bounds whose value just inside no base accepts.
    unreached: Vec<String>,
}

impl Maker<'_> {
    fn walk(&mut self, path: &mut Vec<String>, root: &Value, schema: &Value) {
        if FORBIDDEN.iter().any(|forbidden| path == forbidden) {
            return;
        }
        for (bound, outside, inside) in pairs(schema) {
            self.pair(path, root, &bound, &outside, &inside);
        }
        for name in schema["required"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(Value::as_str)
        {
            self.required(path, root, name);
        }
        for (name, field) in schema["properties"].as_object().into_iter().flatten() {
            if FOREIGN.contains(&name.as_str()) {
                continue;
            }
            path.push(name.clone());
            self.walk(path, root, field);
            path.pop();
        }
        if let Some(items) = schema.get("items") {
            path.push("[]".to_owned());
            self.walk(path, root, items);
            path.pop();
        }
    }

    fn pair(&mut self, path: &[String], root: &Value, bound: &str, outside: &Value, inside: &[Value]) {
        let with = |base: &Value, value: &Value| {
            let mut manifest = base.clone();
            *reach(&mut manifest["spec"], root, path) = value.clone();
            manifest
        };
        let of = |base: &Value| {
            inside
                .iter()
                .map(|inside| (with(base, outside), with(base, inside)))
                .collect()
        };
        self.first_accepted(path, path, bound, of);
    }

    fn required(&mut self, path: &[String], root: &Value, name: &str) {
        let of = |base: &Value| {
            let mut accepted = base.clone();
            reach(&mut accepted["spec"], root, path);
            let mut refused = accepted.clone();
            let object = reach(&mut refused["spec"], root, path).as_object_mut().unwrap();
            object.remove(name).map(|_| (refused, accepted)).into_iter().collect()
        };
        let missing = [path, &[name.to_owned()]].concat();
        self.first_accepted(path, &missing, &format!("required {name}"), of);
    }

    /// Keeps the first pair whose neighbour is accepted. The refusal has to name the field that is wrong, by its whole
    /// path.
    fn first_accepted(
        &mut self,
        path: &[String],
        wrong: &[String],
        bound: &str,
        pairs: impl Fn(&Value) -> Vec<(Value, Value)>,
    ) {
        let name = format!("{} spec.{} {bound}", self.kind, path.join("."));
        let mut last = String::new();
        for (refused, accepted) in self.bases.iter().flat_map(pairs) {
            match self.judge.refusal(&accepted, None) {
                Ok(()) => {
                    let says = vec![field(wrong)];
                    self.cases.push(Case {
                        name,
                        old: None,
                        refused,
                        accepted,
                        says,
                    });
                    return;
                }
                Err((words, _)) => last = words,
            }
        }
        self.unreached.push(format!("{name}: {last}"));
    }
}

/// A path as a refusal names it.
fn field(path: &[String]) -> String {
    path.iter().fold("spec".to_owned(), |whole, part| match part.as_str() {
        "[]" => whole + "[0]",
        name => whole + "." + name,
    })
}

/// The bounds of one schema: what it is, a value outside, values inside of which one has to be accepted.
fn pairs(schema: &Value) -> Vec<(String, Value, Vec<Value>)> {
    let mut pairs = Vec::new();
    let mut add = |bound: &str, outside: Value, inside: Vec<Value>| {
        pairs.push((format!("{bound} {}", schema[bound]), outside, inside));
    };
    if let Some(values) = schema["enum"].as_array() {
        let values = values.iter().filter(|value| !value.is_null());
        add("enum", json!("NotThere"), values.cloned().collect());
    }
    let integer = schema["type"] == "integer";
    for (bound, sign) in [("minimum", -1.0), ("maximum", 1.0)] {
        if let Some(limit) = schema[bound].as_f64() {
            let outside = if integer {
                json!(limit as i64 + sign as i64)
            } else {
                json!(limit + sign * 0.5)
            };
            // Where two fields bound each other without touching, the last value is never accepted, but one half a step
            // before it is.
            let inside = if integer {
                vec![json!(limit as i64)]
            } else {
                vec![json!(limit), json!(limit - sign * 0.5)]
            };
            add(bound, outside, inside);
        }
    }
    if schema["type"] == "string" {
        if schema.get("pattern").is_some() {
            let outside = format!(
                "{NEVER:<width$}",
                width = schema["minLength"].as_u64().unwrap_or(0) as usize
            );
            add("pattern", json!(outside), vec![sample(schema)]);
        }
        if let Some(limit) = schema["minLength"].as_u64() {
            add("minLength", json!("a".repeat(limit as usize - 1)), vec![sample(schema)]);
        }
        if let Some(limit) = schema["maxLength"].as_u64() {
            let limit = limit as usize;
            add(
                "maxLength",
                json!(text(schema, limit + 1)),
                vec![json!(text(schema, limit))],
            );
        }
    }
    if schema["type"] == "array" {
        if let Some(limit) = schema["minItems"].as_u64().filter(|limit| *limit > 0) {
            add("minItems", list(schema, limit - 1), vec![list(schema, limit)]);
        }
        if let Some(limit) = schema["maxItems"].as_u64() {
            add("maxItems", list(schema, limit + 1), vec![list(schema, limit)]);
        }
    }
    let map = |n: u64| Value::Object((0..n).map(|n| (format!("a{n}"), json!("a"))).collect());
    if let Some(limit) = schema["minProperties"].as_u64() {
        add("minProperties", map(limit - 1), vec![map(limit)]);
    }
    if let Some(limit) = schema["maxProperties"].as_u64() {
        add("maxProperties", map(limit + 1), vec![map(limit)]);
    }
    pairs
}

/// A text of this length that matches the schema's pattern, if any of that length does.
fn text(schema: &Value, length: usize) -> String {
    let Some(pattern) = schema["pattern"].as_str() else {
        return "a".repeat(length);
    };
    if pattern == grpo_crds::common::Period::PATTERN {
        // An odd length takes one digit more.
        return "0".repeat(length % 2) + &"0s".repeat(length / 2);
    }
    if pattern.contains("{1,96}") && length > 96 {
        return format!("{}/{}", "a".repeat(96), "a".repeat(length - 97));
    }
    let known = PATTERNS.iter().find(|(known, ..)| *known == pattern);
    let (_, begin, end) = known.unwrap_or_else(|| panic!("say in PATTERNS how a text that matches {pattern} looks"));
    let filling = length.saturating_sub(begin.len() + end.len());
    format!("{begin}{}{end}", "a".repeat(filling))
}

/// The smallest value that a schema allows.
fn sample(schema: &Value) -> Value {
    if let Some(default) = schema.get("default") {
        return default.clone();
    }
    if schema["x-kubernetes-int-or-string"] == true {
        return json!("1");
    }
    match (schema["enum"].as_array(), schema["type"].as_str()) {
        (Some(values), _) => values[0].clone(),
        (None, Some("integer")) => json!(schema["minimum"].as_f64().unwrap_or(0.0) as i64),
        (None, Some("number")) => json!(schema["minimum"].as_f64().unwrap_or(0.0)),
        (None, Some("boolean")) => json!(false),
        (None, Some("array")) => list(schema, schema["minItems"].as_u64().unwrap_or(0)),
        (None, Some("object")) => {
            let required = schema["required"]
                .as_array()
                .into_iter()
                .flatten()
                .filter_map(Value::as_str);
            let mut fields: Map<String, Value> = required
                .map(|name| (name.to_owned(), sample(&schema["properties"][name])))
                .collect();
            // Of a union that has to have a member, the first.
            for members in UNIONS {
                let has = |name: &&str| schema["properties"].get(*name).is_some();
                let wanted = schema["x-kubernetes-validations"]
                    .to_string()
                    .contains("give exactly one of");
                if wanted && members.iter().all(has) && !members.iter().any(|name| fields.contains_key(*name)) {
                    fields.insert(members[0].to_owned(), sample(&schema["properties"][members[0]]));
                    if let Some(source) = fields[members[0]].as_object_mut() {
                        // A dataset's source names a file.
                        if schema["x-kubernetes-validations"]
                            .to_string()
                            .contains("path is missing")
                        {
                            source.insert("path".into(), json!("a.jsonl"));
                        }
                    }
                }
            }
            Value::Object(fields)
        }
        (None, Some("string")) if schema["pattern"] == grpo_crds::common::Period::PATTERN => json!("1m"),
        (None, Some("string")) => json!(text(schema, schema["minLength"].as_u64().unwrap_or(1).max(1) as usize)),
        (None, other) => panic!("no sample of {other:?}: {schema}"),
    }
}

/// So many different items.
fn list(schema: &Value, length: u64) -> Value {
    let items = &schema["items"];
    let item = |n: u64| match sample(items) {
        Value::Object(mut fields) => {
            for key in schema["x-kubernetes-list-map-keys"]
                .as_array()
                .into_iter()
                .flatten()
                .filter_map(Value::as_str)
            {
                fields.insert(key.to_owned(), json!(format!("a{n}")));
            }
            Value::Object(fields)
        }
        Value::String(_) if items.get("pattern").is_none() && items.get("enum").is_none() => json!(format!("a{n}")),
        other => other,
    };
    Value::Array((0..length).map(item).collect())
}

/// What is at a path of a spec. What is missing on the way is made, other members of unions are taken away.
fn reach<'a>(target: &'a mut Value, schema: &Value, path: &[String]) -> &'a mut Value {
    let Some((first, rest)) = path.split_first() else {
        return target;
    };
    if first == "[]" {
        if target.as_array().is_none_or(Vec::is_empty) {
            *target = list(schema, 1);
        }
        return reach(&mut target[0], &schema["items"], rest);
    }
    let schema = &schema["properties"][first];
    let fields = target.as_object_mut().unwrap();
    for union in UNIONS.iter().filter(|union| union.contains(&first.as_str())) {
        fields.retain(|name, _| name == first || !union.contains(&name.as_str()));
    }
    reach(
        fields.entry(first.clone()).or_insert_with(|| sample(schema)),
        schema,
        rest,
    )
}
