//! The OpenAPI 3.1 description of the gateway's own API, generated from the types that are read and written.

use std::collections::BTreeMap;

use axum::{Json, Router, routing::get};
use grpo_sandbox_protocol::{
    CloseRequest, Demand, ErrorBody, ErrorCode, ExecRequest, ExecResult, ExecState, ImageTrouble, KillRequest, Lease,
    LeaseRequest, OutputPart, PackageIndexState, PoolState, RelayRequest, RenewRequest, SessionInput, SessionReply,
    SessionRequest,
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

/// Errors of every call in a lease.
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
            "description": "Leases sandboxes and runs commands in them. Every error has a code, a message and a fault.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "paths": paths,
        "components": {
            "schemas": types.take_definitions(true),
            "securitySchemes": {"serviceAccountToken": {
                "type": "http", "scheme": "bearer", "bearerFormat": "JWT",
                "description": "A service-account token for the audience gateway.grpo.dev.",
            }},
        },
    });
    bound_integers(&mut document);
    document
}

/// Adds bounds to integers: JSON's have none, ours have.
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
                    json!({"name": "id", "in": "path", "required": true, "description": "The lease's id.",
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
        // Only the gateway that owns the pool may say that a lease does not exist, and the ownership is not always
        // certain.
        if codes.contains(&ErrorCode::NoSuchLease) && !self.errors.contains(&ErrorCode::Unavailable) {
            self.errors.push(ErrorCode::Unavailable);
        }
        self
    }

    /// Links later operations to the lease of the response.
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
        if self.path.starts_with("/v1/") {
            self.errors.extend([ErrorCode::Unauthenticated, ErrorCode::Forbidden]);
        }
        let mut by_status: BTreeMap<u16, Vec<String>> = BTreeMap::new();
        for code in &self.errors {
            by_status.entry(code.status()).or_default().push(format!("{code:?}"));
        }
        let schema = types.subschema_for::<ErrorBody>();
        for (status, mut codes) in by_status {
            codes.sort();
            codes.dedup();
            let answer = json!({"description": codes.join(" or "), "content": {JSON: {"schema": schema}}});
            self.answers.insert(status.to_string(), answer);
        }
        let mut told = json!({"operationId": self.id, "summary": self.summary, "responses": self.answers});
        if self.path.starts_with("/v1/") {
            told["security"] = json!([{"serviceAccountToken": []}]);
        }
        if !self.parameters.is_empty() {
            told["parameters"] = Value::Array(self.parameters);
        }
        if let Some(body) = self.body {
            told["requestBody"] = body;
        }
        told
    }
}

/// An absolute path without `..` that names something.
const ABSOLUTE: &str = {
    r"^/(\.?/)*([^/.\x00][^/\x00]*|\.[^/.\x00][^/\x00]*|\.\.[^/\x00]+)(/([^/.\x00][^/\x00]*|\.[^/.\x00][^/\x00]*|\.\.[^/\x00]+|\.)?)*$"
};

fn operations(types: &mut SchemaGenerator) -> Vec<Operation> {
    let mut operations = about_the_process();
    operations.extend(about_leases(types));
    operations.extend(commands(types));
    operations.extend(sessions(types));
    for (path, what) in [("/v1/leases/{id}/files", "File"), ("/v1/leases/{id}/tree", "Tree")] {
        operations.extend(bytes(path, what == "Tree"));
    }
    operations.extend([
        Operation::new(
            "put",
            "/v1/demand",
            "want",
            "Set the number of warm sandboxes that a run needs from now on.",
        )
        .reads::<Demand>(types)
        .done("The demand is stored; it replaces the run's earlier demand.")
        .refuses(&[ErrorCode::Unavailable]),
        Operation::new(
            "get",
            "/v1/pool",
            "lookAtPool",
            "The pool's numbers of sandboxes and leases.",
        )
        .answers::<PoolState>(types, "The numbers."),
        Operation::new(
            "get",
            "/v1/pool/package-index",
            "lookAtPackageIndex",
            "Whether the gateway can reach the graders' package index now.",
        )
        .answers::<PackageIndexState>(types, "The result of the gateway's connection."),
        Operation::new(
            "get",
            "/v1/pool/troubles",
            "lookAtTroubles",
            "Images that could not be pulled, and until when they are not tried again.",
        )
        .answers::<Vec<ImageTrouble>>(types, "The images."),
    ]);
    operations
}

fn about_leases(types: &mut SchemaGenerator) -> Vec<Operation> {
    vec![
        Operation::new(
            "post",
            "/v1/leases",
            "takeLease",
            "Lease a sandbox. Waits up to `waitSeconds`, at most 600.",
        )
        .reads::<LeaseRequest>(types)
        .answers::<Lease>(types, "The lease. A request with the same id gets the same lease.")
        .leads_to(&[
            "lookAtLease",
            "releaseLease",
            "renewLease",
            "runCommand",
            "startCommand",
            "beginSession",
            "getFile",
            "putFile",
            "getTree",
        ])
        .refuses(&[
            ErrorCode::EgressUnproven,
            ErrorCode::NoSuchLease,
            ErrorCode::SandboxLost,
        ])
        .refuses(&[
            ErrorCode::ImageUnavailable,
            ErrorCode::PackageIndexUnreachable,
            ErrorCode::QueueDeadline,
            ErrorCode::Unavailable,
        ]),
        Operation::new("get", "/v1/leases/{id}", "lookAtLease", "Read a lease.")
            .answers::<Lease>(types, "The lease.")
            .refuses(&[ErrorCode::BadRequest, ErrorCode::NoSuchLease, ErrorCode::SandboxLost]),
        Operation::new(
            "delete",
            "/v1/leases/{id}",
            "releaseLease",
            "Release a lease. Its pod is deleted, or reset.",
        )
        .done("The lease is released, and stays released if the gateway fails now; or there was no such lease.")
        .refuses(&[ErrorCode::BadRequest, ErrorCode::Unavailable]),
        Operation::new("post", "/v1/leases/{id}/renew", "renewLease", "Renew a lease.")
            .reads::<RenewRequest>(types)
            .answers::<Lease>(types, "The renewed lease. The pool caps the time.")
            .refuses(&IN_A_LEASE),
        Operation::new(
            "put",
            "/v1/leases/{id}/relay",
            "relay",
            "Serve a loopback port of the sandbox from a service outside.",
        )
        .reads::<RelayRequest>(types)
        .done("The port is open.")
        .refuses(&IN_A_LEASE),
    ]
}

fn number() -> Value {
    json!({"type": "integer", "format": "uint64", "minimum": 0})
}

fn commands(types: &mut SchemaGenerator) -> Vec<Operation> {
    let named = |operation: Operation| {
        let id = json!({"type": "string"});
        let operation = operation.query("id", true, id, "The command's id.");
        operation
            .query(
                "waitSeconds",
                false,
                number(),
                "Seconds to wait for the end, at most 50.",
            )
            .refuses(&[ErrorCode::BadRequest, ErrorCode::NoSuchExec])
            .refuses(&IN_A_LEASE)
    };
    vec![
        Operation::new(
            "post",
            "/v1/leases/{id}/exec",
            "runCommand",
            "Run a command and wait for its end. A command with the same id never runs twice.",
        )
        .reads::<ExecRequest>(types)
        .answers::<ExecResult>(types, "The result.")
        .refuses(&IN_A_LEASE),
        named(Operation::new(
            "get",
            "/v1/leases/{id}/exec",
            "lookAtCommand",
            "The state of a command.",
        ))
        .answers::<ExecState>(types, "The state, with the result of a command that has ended."),
        Operation::new(
            "post",
            "/v1/leases/{id}/exec/start",
            "startCommand",
            "Start a command without waiting. A command with the same id is not started again.",
        )
        .reads::<ExecRequest>(types)
        .answers::<ExecState>(types, "The state.")
        .refuses(&IN_A_LEASE),
        named(Operation::new(
            "get",
            "/v1/leases/{id}/exec/output",
            "readOutput",
            "Read a part of a command's output.",
        ))
        .query("from", false, number(), "The first byte of the part.")
        .query("limit", false, number(), "Most bytes of the part, at most 4 MiB.")
        .answers::<OutputPart>(types, "The part."),
        Operation::new(
            "post",
            "/v1/leases/{id}/exec/kill",
            "killCommand",
            "Kill a command, or send it a signal.",
        )
        .reads::<KillRequest>(types)
        .answers::<ExecState>(types, "The state.")
        .refuses(&[ErrorCode::NoSuchExec])
        .refuses(&IN_A_LEASE),
    ]
}

fn sessions(types: &mut SchemaGenerator) -> Vec<Operation> {
    vec![
        Operation::new(
            "post",
            "/v1/leases/{id}/sessions",
            "beginSession",
            "Start a program with a terminal.",
        )
        .reads::<SessionRequest>(types)
        .done("The session exists.")
        .refuses(&IN_A_LEASE),
        Operation::new(
            "post",
            "/v1/leases/{id}/sessions/input",
            "typeInSession",
            "Type into a session and wait for its reply. Input with the same id is typed once.",
        )
        .reads::<SessionInput>(types)
        .answers::<SessionReply>(types, "The output since the last reply.")
        .refuses(&[ErrorCode::NoSuchExec])
        .refuses(&IN_A_LEASE),
        Operation::new(
            "post",
            "/v1/leases/{id}/sessions/close",
            "closeSession",
            "End a session and all of its processes.",
        )
        .reads::<CloseRequest>(types)
        .done("The session has ended, or did not exist.")
        .refuses(&IN_A_LEASE),
    ]
}

/// Files, and folders as tars.
fn bytes(path: &'static str, is_tree: bool) -> [Operation; 2] {
    let located = |operation: Operation| {
        let absolute = json!({"type": "string", "pattern": ABSOLUTE});
        let links = json!({"type": "string", "enum": ["follow", "refuse"]});
        operation
            .query("path", true, absolute, "Absolute, without `..`.")
            .query(
                "links",
                false,
                links,
                "Whether parts of the path may be symbolic links.",
            )
            .refuses(&[ErrorCode::BadRequest, ErrorCode::NoSuchFile, ErrorCode::TooLarge])
            .refuses(&IN_A_LEASE)
    };
    let mode = json!({"type": "string", "pattern": "^[0-7]{1,4}$"});
    match is_tree {
        false => [
            located(Operation::new("put", path, "putFile", "Write a file atomically."))
                .query("mode", false, mode, "Permissions, octal; 0644 by default.")
                .raw_body()
                .done("The file is written."),
            located(Operation::new("get", path, "getFile", "Read a file.")).gives(
                200,
                "The file's bytes.",
                json!({BYTES: {}}),
            ),
        ],
        true => [
            located(Operation::new("put", path, "putTree", "Unpack a tar into a folder."))
                .raw_body()
                .done("The folder is written."),
            located(Operation::new("get", path, "getTree", "Read a folder as a tar.")).gives(
                200,
                "The tar.",
                json!({BYTES: {}}),
            ),
        ],
    }
}

impl Operation {
    fn raw_body(mut self) -> Self {
        self.body = Some(json!({"required": true, "content": {BYTES: {}}}));
        self
    }
}

fn about_the_process() -> Vec<Operation> {
    vec![
        Operation::new("get", "/healthz", "isAlive", "Whether the process makes progress.")
            .gives(200, "It makes progress.", json!({TEXT: {}}))
            .gives(503, "It makes none, and must be restarted.", json!({TEXT: {}})),
        Operation::new(
            "get",
            "/readyz",
            "isReady",
            "Whether the gateway takes requests for leases.",
        )
        .gives(200, "It does.", json!({TEXT: {}}))
        .gives(503, "Not yet, or no longer.", json!({TEXT: {}})),
        Operation::new("get", "/metrics", "metrics", "Metrics.").gives(
            200,
            "Metrics in OpenMetrics text.",
            json!({"application/openmetrics-text": {}}),
        ),
        Operation::new("get", PATH, "describe", "This description, as OpenAPI 3.1.").gives(
            200,
            "The description.",
            json!({JSON: {}}),
        ),
    ]
}

#[cfg(test)]
mod tests;
