//! The description of the gateway's own API: OpenAPI 3.1, made from the very types that are read and written.

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
        // Only the pool's gateway says that there is no such lease; whether it is that is not always certain.
        if codes.contains(&ErrorCode::NoSuchLease) && !self.errors.contains(&ErrorCode::Unavailable) {
            self.errors.push(ErrorCode::Unavailable);
        }
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
        if self.path.starts_with("/v1/") {
            self.errors.extend([ErrorCode::Unauthenticated, ErrorCode::Forbidden]);
        }
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
            "Sandboxes that a run wants warm from now on; replaces what it wanted.",
        )
        .reads::<Demand>(types)
        .done("It is known."),
        Operation::new("get", "/v1/pool", "lookAtPool", "The pool in numbers.")
            .answers::<PoolState>(types, "The numbers."),
        Operation::new(
            "get",
            "/v1/pool/package-index",
            "lookAtPackageIndex",
            "Whether the package index of graders answers now.",
        )
        .answers::<PackageIndexState>(types, "What the gateway finds when it connects."),
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

fn about_leases(types: &mut SchemaGenerator) -> Vec<Operation> {
    vec![
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
        Operation::new("get", "/v1/leases/{id}", "lookAtLease", "A lease as it is.")
            .answers::<Lease>(types, "The lease.")
            .refuses(&[ErrorCode::BadRequest, ErrorCode::NoSuchLease, ErrorCode::SandboxLost]),
        Operation::new(
            "delete",
            "/v1/leases/{id}",
            "releaseLease",
            "Give a sandbox back. Its pod ends.",
        )
        .done("The sandbox is given back, even if this gateway fails now, or there was no such lease.")
        .refuses(&[ErrorCode::BadRequest, ErrorCode::Unavailable]),
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
            "put",
            "/v1/leases/{id}/relay",
            "relay",
            "Open a loopback port of the sandbox to a service.",
        )
        .reads::<RelayRequest>(types)
        .done("It is open.")
        .refuses(&IN_A_LEASE),
    ]
}

fn number() -> Value {
    json!({"type": "integer", "format": "uint64", "minimum": 0})
}

fn commands(types: &mut SchemaGenerator) -> Vec<Operation> {
    let named = |operation: Operation| {
        let id = json!({"type": "string"});
        let operation = operation.query("id", true, id, "Of the command.");
        operation
            .query("waitSeconds", false, number(), "How long to wait, at most 50.")
            .refuses(&[ErrorCode::BadRequest, ErrorCode::NoSuchExec])
            .refuses(&IN_A_LEASE)
    };
    vec![
        Operation::new(
            "post",
            "/v1/leases/{id}/exec",
            "runCommand",
            "Run a command to its end. The same id never runs twice.",
        )
        .reads::<ExecRequest>(types)
        .answers::<ExecResult>(types, "How it ended.")
        .refuses(&IN_A_LEASE),
        named(Operation::new(
            "get",
            "/v1/leases/{id}/exec",
            "lookAtCommand",
            "Where a command is.",
        ))
        .answers::<ExecState>(types, "With its result, if it has ended."),
        Operation::new(
            "post",
            "/v1/leases/{id}/exec/start",
            "startCommand",
            "Begin a command. The same id begins nothing again.",
        )
        .reads::<ExecRequest>(types)
        .answers::<ExecState>(types, "Where it is.")
        .refuses(&IN_A_LEASE),
        named(Operation::new(
            "get",
            "/v1/leases/{id}/exec/output",
            "readOutput",
            "Part of what a command has printed.",
        ))
        .query("from", false, number(), "Where the part begins, bytes.")
        .query("limit", false, number(), "How many bytes at most; at most 4 MiB.")
        .answers::<OutputPart>(types, "The part."),
        Operation::new(
            "post",
            "/v1/leases/{id}/exec/kill",
            "killCommand",
            "End a command, or send it a signal.",
        )
        .reads::<KillRequest>(types)
        .answers::<ExecState>(types, "Where it is.")
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
            "Begin a program behind a terminal.",
        )
        .reads::<SessionRequest>(types)
        .done("It is there.")
        .refuses(&IN_A_LEASE),
        Operation::new(
            "post",
            "/v1/leases/{id}/sessions/input",
            "typeInSession",
            "Type, and wait for what comes of it. The same id is typed once.",
        )
        .reads::<SessionInput>(types)
        .answers::<SessionReply>(types, "What was printed since the last reply.")
        .refuses(&[ErrorCode::NoSuchExec])
        .refuses(&IN_A_LEASE),
        Operation::new(
            "post",
            "/v1/leases/{id}/sessions/close",
            "closeSession",
            "End a session and all that it started.",
        )
        .reads::<CloseRequest>(types)
        .done("It has ended, or was not there.")
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
                "Whether a part of the path may be a symbolic link.",
            )
            .refuses(&[ErrorCode::BadRequest, ErrorCode::NoSuchFile, ErrorCode::TooLarge])
            .refuses(&IN_A_LEASE)
    };
    let mode = json!({"type": "string", "pattern": "^[0-7]{1,4}$"});
    match is_tree {
        false => [
            located(Operation::new("put", path, "putFile", "Put a file in place at once."))
                .query("mode", false, mode, "Permissions, octal; 0644 unless given.")
                .raw_body()
                .done("It is there."),
            located(Operation::new("get", path, "getFile", "A whole file.")).gives(
                200,
                "Its bytes.",
                json!({BYTES: {}}),
            ),
        ],
        true => [
            located(Operation::new("put", path, "putTree", "Unpack a tar below a folder."))
                .raw_body()
                .done("It is there."),
            located(Operation::new("get", path, "getTree", "A folder as a tar.")).gives(
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
            .gives(200, "It does.", json!({TEXT: {}}))
            .gives(503, "It must be restarted.", json!({TEXT: {}})),
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
