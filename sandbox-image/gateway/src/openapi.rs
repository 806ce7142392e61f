//! The description of the gateway's own API: OpenAPI 3.1, made from the very types that are read and written.

use std::collections::BTreeMap;

use axum::{Json, Router, routing::get};
use grpo_sandbox_protocol::{
    Demand, ErrorBody, ErrorCode, ExecRequest, ExecResult, ImageTrouble, Lease, LeaseRequest, PoolState, RenewRequest,
};
use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, SchemaGenerator};
use serde_json::{Map, Value, json};

pub const PATH: &str = "/openapi.json";

const JSON: &str = "application/json";
const BYTES: &str = "application/octet-stream";
const TEXT: &str = "text/plain; charset=utf-8";

pub fn router() -> Router {
    Router::new().route(PATH, get(|| async { Json(document()) }))
}

/// What may come of every call in a lease.
const IN_A_LEASE: [ErrorCode; 6] = [
    ErrorCode::NoSuchLease,
    ErrorCode::WrongLease,
    ErrorCode::SandboxLost,
    ErrorCode::Internal,
    ErrorCode::SandboxUnreachable,
    ErrorCode::Unavailable,
];

pub fn document() -> Value {
    let settings = SchemaSettings::draft2020_12().with(|settings| {
        settings.definitions_path = "/components/schemas".into();
        settings.meta_schema = None;
    });
    let mut types = settings.into_generator();
    let mut paths: BTreeMap<&str, Map<String, Value>> = BTreeMap::new();
    for operation in operations(&mut types) {
        let path = paths.entry(operation.path).or_default();
        path.insert(operation.method.to_owned(), operation.told(&mut types));
    }
    let mut document = json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Gateway of a SandboxPool",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "Leases sandboxes and runs commands in them. Every error has a code, a message, and whose fault it was.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "paths": paths,
        "components": {"schemas": types.take_definitions(true)},
    });
    bound_integers(&mut document);
    document
}

/// JSON's integers have no bounds; ours have.
fn bound_integers(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            let most = match fields.get("format").and_then(Value::as_str) {
                Some("uint64") => Some(json!(u64::MAX)),
                Some("int64") => Some(json!(i64::MAX)),
                Some("uint32") => Some(json!(u32::MAX)),
                Some("int32") => Some(json!(i32::MAX)),
                _ => None,
            };
            if let Some(most) = most {
                fields.entry("maximum").or_insert(most);
            }
            fields.values_mut().for_each(bound_integers);
        }
        Value::Array(items) => items.iter_mut().for_each(bound_integers),
        _ => {}
    }
}

struct Operation {
    method: &'static str,
    path: &'static str,
    id: &'static str,
    summary: &'static str,
    parameters: Vec<Value>,
    body: Option<Value>,
    answers: Map<String, Value>,
    errors: Vec<ErrorCode>,
}

impl Operation {
    fn new(method: &'static str, path: &'static str, id: &'static str, summary: &'static str) -> Self {
        Self {
            method,
            path,
            id,
            summary,
            parameters: match path.contains("{id}") {
                true => vec![
                    json!({"name": "id", "in": "path", "required": true, "description": "Of the lease.",
                    "schema": {"type": "string", "minLength": 1}}),
                ],
                false => Vec::new(),
            },
            body: None,
            answers: Map::new(),
            errors: Vec::new(),
        }
    }

    fn reads<T: JsonSchema>(mut self, types: &mut SchemaGenerator) -> Self {
        let schema = types.subschema_for::<T>();
        self.body = Some(json!({"required": true, "content": {JSON: {"schema": schema}}}));
        self.errors.extend([ErrorCode::BadRequest, ErrorCode::TooLarge]);
        self
    }

    fn query(mut self, name: &str, required: bool, schema: Value, what: &str) -> Self {
        let parameter =
            json!({"name": name, "in": "query", "required": required, "schema": schema, "description": what});
        self.parameters.push(parameter);
        self
    }

    fn answers<T: JsonSchema>(self, types: &mut SchemaGenerator, what: &str) -> Self {
        let schema = types.subschema_for::<T>();
        self.gives(200, what, json!({JSON: {"schema": schema}}))
    }

    fn gives(mut self, status: u16, what: &str, content: Value) -> Self {
        let mut answer = json!({"description": what});
        if let (Some(fields), false) = (answer.as_object_mut(), content.is_null()) {
            fields.insert("content".into(), content);
        }
        self.answers.insert(status.to_string(), answer);
        self
    }

    fn done(self, what: &str) -> Self {
        self.gives(204, what, Value::Null)
    }

    fn refuses(mut self, codes: &[ErrorCode]) -> Self {
        self.errors.extend(codes);
        self
    }

    /// The lease of the answer is what later calls are about.
    fn leads_to(mut self, operations: &[&str]) -> Self {
        let links: Map<String, Value> = operations
            .iter()
            .map(|id| {
                let link = json!({"operationId": id, "parameters": {"id": "$response.body#/id"}});
                ((*id).to_owned(), link)
            })
            .collect();
        if let Some(answer) = self.answers.get_mut("200") {
            answer["links"] = Value::Object(links);
        }
        self
    }

    fn told(mut self, types: &mut SchemaGenerator) -> Value {
        let mut by_status: BTreeMap<u16, Vec<String>> = BTreeMap::new();
        for code in &self.errors {
            by_status.entry(code.status()).or_default().push(format!("{code:?}"));
        }
        let schema = types.subschema_for::<ErrorBody>();
        for (status, mut codes) in by_status {
            codes.dedup();
            let answer = json!({"description": codes.join(" or "), "content": {JSON: {"schema": schema}}});
            self.answers.insert(status.to_string(), answer);
        }
        let mut told = json!({"operationId": self.id, "summary": self.summary, "responses": self.answers});
        if !self.parameters.is_empty() {
            told["parameters"] = Value::Array(self.parameters);
        }
        if let Some(body) = self.body {
            told["requestBody"] = body;
        }
        told
    }
}

fn operations(types: &mut SchemaGenerator) -> Vec<Operation> {
    let absolute = json!({"type": "string", "minLength": 2, "pattern": "^/"});
    let mut operations = about_the_process();
    operations.extend([
        Operation::new(
            "post",
            "/v1/leases",
            "takeLease",
            "Lease a sandbox. Waits for one as long as it says, at most 600 s.",
        )
        .reads::<LeaseRequest>(types)
        .answers::<Lease>(types, "The lease. Asked again with the same id: the same lease.")
        .leads_to(&[
            "lookAtLease",
            "releaseLease",
            "renewLease",
            "runCommand",
            "getFile",
            "putFile",
        ])
        .refuses(&[
            ErrorCode::EgressUnproven,
            ErrorCode::NoSuchLease,
            ErrorCode::SandboxLost,
        ])
        .refuses(&[
            ErrorCode::ImageUnavailable,
            ErrorCode::QueueDeadline,
            ErrorCode::Unavailable,
        ]),
        Operation::new("get", "/v1/leases/{id}", "lookAtLease", "A lease as it is.")
            .answers::<Lease>(types, "The lease.")
            .refuses(&[ErrorCode::BadRequest, ErrorCode::NoSuchLease, ErrorCode::SandboxLost]),
        Operation::new(
            "delete",
            "/v1/leases/{id}",
            "releaseLease",
            "Give a sandbox back. Its pod ends.",
        )
        .done("It is given back, or was not there.")
        .refuses(&[ErrorCode::BadRequest]),
        Operation::new(
            "post",
            "/v1/leases/{id}/renew",
            "renewLease",
            "Give a lease more time from now on.",
        )
        .reads::<RenewRequest>(types)
        .answers::<Lease>(types, "The lease as it is then. The pool caps the time.")
        .refuses(&IN_A_LEASE),
        Operation::new(
            "post",
            "/v1/leases/{id}/exec",
            "runCommand",
            "Run a command to its end. The same id never runs twice.",
        )
        .reads::<ExecRequest>(types)
        .answers::<ExecResult>(types, "How it ended.")
        .refuses(&IN_A_LEASE),
        Operation::new(
            "put",
            "/v1/leases/{id}/files",
            "putFile",
            "Put a file in place at once.",
        )
        .query("path", true, absolute.clone(), "Absolute, without `..`.")
        .query(
            "mode",
            false,
            json!({"type": "string", "pattern": "^[0-7]{1,4}$"}),
            "Permissions, octal; 0644 unless given.",
        )
        .query(
            "links",
            false,
            json!({"enum": ["follow", "refuse"]}),
            "Whether a part of the path may be a symbolic link.",
        )
        .raw_body()
        .done("It is there.")
        .refuses(&[ErrorCode::BadRequest, ErrorCode::NoSuchFile, ErrorCode::TooLarge])
        .refuses(&IN_A_LEASE),
        Operation::new("get", "/v1/leases/{id}/files", "getFile", "A whole file.")
            .query("path", true, absolute, "Absolute, without `..`.")
            .query(
                "links",
                false,
                json!({"enum": ["follow", "refuse"]}),
                "Whether a part of the path may be a symbolic link.",
            )
            .gives(200, "Its bytes.", json!({BYTES: {}}))
            .refuses(&[ErrorCode::BadRequest, ErrorCode::NoSuchFile, ErrorCode::TooLarge])
            .refuses(&IN_A_LEASE),
        Operation::new(
            "put",
            "/v1/demand",
            "want",
            "Sandboxes that a run wants warm from now on; replaces what it wanted.",
        )
        .reads::<Demand>(types)
        .done("It is known."),
        Operation::new("get", "/v1/pool", "lookAtPool", "The pool in numbers.")
            .answers::<PoolState>(types, "The numbers."),
        Operation::new(
            "get",
            "/v1/pool/troubles",
            "lookAtTroubles",
            "Images that could not be pulled and are left alone for a while.",
        )
        .answers::<Vec<ImageTrouble>>(types, "The images."),
    ]);
    operations
}

impl Operation {
    fn raw_body(mut self) -> Self {
        self.body = Some(json!({"required": true, "content": {BYTES: {}}}));
        self
    }
}

fn about_the_process() -> Vec<Operation> {
    vec![
        Operation::new("get", "/healthz", "isAlive", "Whether the process is alive.").gives(
            200,
            "It is.",
            json!({TEXT: {}}),
        ),
        Operation::new("get", "/readyz", "isReady", "Whether leases may be asked for.")
            .gives(200, "They may.", json!({TEXT: {}}))
            .gives(503, "Not yet, or not any more.", json!({TEXT: {}})),
        Operation::new("get", "/metrics", "metrics", "What is counted.").gives(
            200,
            "For Prometheus.",
            json!({"application/openmetrics-text": {}}),
        ),
        Operation::new("get", PATH, "describe", "This description.").gives(200, "It.", json!({JSON: {}})),
    ]
}
