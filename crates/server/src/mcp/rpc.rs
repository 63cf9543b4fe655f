//! JSON-RPC 2.0 and the revisions of the protocol. Knows messages, versions and errors; knows no transport and no tool.

use longhaul_pipeline::json_check;
use serde_json::{Map, Value, json};

use super::Access;
use super::tools::{self, Tool};
use crate::ctx::Ctx;

/// Revisions without a handshake: each request tells its version and what the client can do.
const MODERN: [&str; 1] = ["2026-07-28"];
/// Revisions that begin with `initialize`, newest first.
const LEGACY: [&str; 4] = ["2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05"];

const META_VERSION: &str = "io.modelcontextprotocol/protocolVersion";
const META_CAPABILITIES: &str = "io.modelcontextprotocol/clientCapabilities";
const META_SERVER: &str = "io.modelcontextprotocol/serverInfo";

/// How long a client may keep the list of tools. It changes with a token's scopes or a restart.
const LIST_FRESH_MS: u64 = 60_000;

/// What a client sent.
#[derive(Debug)]
pub(super) enum Message {
    /// Wants an answer.
    Request(Request),
    /// Wants none.
    Notification { method: String, params: Map<String, Value> },
    /// An answer to something that we never asked.
    Response,
}

/// A message that wants an answer.
#[derive(Debug)]
pub(super) struct Request {
    /// A text or a number, sent back as it came.
    pub(super) id: Value,
    pub(super) method: String,
    pub(super) params: Map<String, Value>,
}

/// An error of the protocol.
#[derive(Debug)]
pub(super) struct RpcError {
    pub(super) code: i32,
    pub(super) message: String,
    data: Option<Value>,
    /// The request itself was wrong, and not what it asked for.
    pub(super) malformed: bool,
}

impl RpcError {
    pub(super) const PARSE: i32 = -32700;
    pub(super) const INVALID_REQUEST: i32 = -32600;
    pub(super) const METHOD_NOT_FOUND: i32 = -32601;
    pub(super) const INVALID_PARAMS: i32 = -32602;
    pub(super) const HEADER_MISMATCH: i32 = -32020;
    pub(super) const UNSUPPORTED_VERSION: i32 = -32022;

    pub(super) fn new(code: i32, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), data: None, malformed: false }
    }

    /// The request is none that the protocol knows.
    pub(super) fn malformed(code: i32, message: impl Into<String>) -> Self {
        Self { malformed: true, ..Self::new(code, message) }
    }

    pub(super) fn unsupported(version: &str) -> Self {
        let data = json!({ "supported": versions(), "requested": version });
        Self {
            data: Some(data),
            ..Self::malformed(Self::UNSUPPORTED_VERSION, "Unsupported protocol version")
        }
    }

    /// The message that tells of it. What could not be read has no id.
    pub(super) fn answer(&self, id: &Value) -> Value {
        let mut error = json!({ "code": self.code, "message": self.message });
        if let Some(data) = &self.data {
            error["data"] = data.clone();
        }
        json!({ "jsonrpc": "2.0", "id": id, "error": error })
    }
}

fn versions() -> Vec<&'static str> {
    MODERN.into_iter().chain(LEGACY).collect()
}

/// Whether a revision is one of ours.
pub(super) fn is_known(version: &str) -> bool {
    is_modern(version) || LEGACY.contains(&version)
}

/// Whether requests of a revision tell themselves who sends them.
pub(super) fn is_modern(version: &str) -> bool {
    MODERN.contains(&version)
}

/// Reads one message.
pub(super) fn parse(text: &[u8]) -> Result<Message, RpcError> {
    let value: Value = json_check::check(text)
        .and_then(|()| serde_json::from_slice(text))
        .map_err(|error| RpcError::malformed(RpcError::PARSE, format!("not JSON: {error}")))?;
    let invalid = |text: &str| RpcError::malformed(RpcError::INVALID_REQUEST, text);
    let Value::Object(mut fields) = value else {
        return Err(invalid("expected one JSON-RPC message, an object; send several one by one"));
    };
    if fields.get("jsonrpc").and_then(Value::as_str) != Some("2.0") {
        return Err(invalid("jsonrpc is not \"2.0\""));
    }
    let Some(method) = fields.shift_remove("method") else {
        return match fields.contains_key("result") || fields.contains_key("error") {
            true => Ok(Message::Response),
            false => Err(invalid("method is missing")),
        };
    };
    let Value::String(method) = method else { return Err(invalid("method is no text")) };
    let params = match fields.shift_remove("params") {
        None | Some(Value::Null) => Map::new(),
        Some(Value::Object(params)) => params,
        Some(_) => return Err(invalid("params is no object")),
    };
    match fields.shift_remove("id") {
        None => Ok(Message::Notification { method, params }),
        Some(id @ (Value::String(_) | Value::Number(_))) => {
            Ok(Message::Request(Request { id, method, params }))
        }
        Some(_) => Err(invalid("id is neither a text nor a number")),
    }
}

impl Request {
    /// The version that the request tells, if it is of the era in which each one does.
    pub(super) fn version(&self) -> Option<&str> {
        self.params.get("_meta")?.get(META_VERSION)?.as_str()
    }

    /// Whether it is to be answered without a handshake. Where nobody has told a version, the method tells the era.
    pub(super) fn is_modern(&self) -> bool {
        match self.version() {
            Some(version) => !LEGACY.contains(&version),
            None => self.method == "server/discover",
        }
    }

    /// The tool that it calls.
    pub(super) fn tool(&self) -> Option<&str> {
        if self.method != "tools/call" {
            return None;
        }
        self.params.get("name")?.as_str()
    }

    fn check_version(&self) -> Result<(), RpcError> {
        if let Some(version) = self.version()
            && !is_known(version)
        {
            return Err(RpcError::unsupported(version));
        }
        if !self.is_modern() {
            return Ok(());
        }
        let meta = self.params.get("_meta");
        let missing = [
            (META_VERSION, self.version().is_some()),
            (
                META_CAPABILITIES,
                meta.and_then(|meta| meta.get(META_CAPABILITIES)).is_some_and(Value::is_object),
            ),
        ];
        match missing.iter().find(|(_, there)| !there) {
            Some((key, _)) => Err(RpcError::malformed(
                RpcError::INVALID_PARAMS,
                format!("params._meta lacks {key}, or it has the wrong type"),
            )),
            None => Ok(()),
        }
    }
}

/// Answers a request: the result, or why there is none.
pub(super) async fn answer(ctx: &Ctx, access: &Access, request: &Request) -> Result<Value, RpcError> {
    request.check_version()?;
    let modern = request.is_modern();
    let mut result = match request.method.as_str() {
        "initialize" => return initialize(ctx, &request.params),
        "server/discover" => discover(ctx),
        // The newest revision has none.
        "ping" if !modern => json!({}),
        "tools/list" => list(access, &request.params)?,
        "tools/call" => call(ctx, access, request).await?,
        method => {
            let text = format!("there is no method {method}; this server has tools");
            return Err(RpcError::new(RpcError::METHOD_NOT_FOUND, text));
        }
    };
    if modern {
        result["resultType"] = "complete".into();
        result["_meta"] = json!({ META_SERVER: server() });
        if matches!(request.method.as_str(), "tools/list" | "server/discover") {
            result["ttlMs"] = LIST_FRESH_MS.into();
            // Which tools there are depends on who asks.
            result["cacheScope"] = "private".into();
        }
    }
    Ok(result)
}

fn server() -> Value {
    json!({ "name": "longhaul", "title": "Longhaul", "version": env!("CARGO_PKG_VERSION") })
}

fn initialize(ctx: &Ctx, params: &Map<String, Value>) -> Result<Value, RpcError> {
    let Some(wanted) = params.get("protocolVersion").and_then(Value::as_str) else {
        return Err(RpcError::new(RpcError::INVALID_PARAMS, "params.protocolVersion is missing"));
    };
    // A client that does not know our newest one hangs up; one that asked for none of ours may still know it.
    let version = LEGACY.into_iter().find(|version| *version == wanted).unwrap_or(LEGACY[0]);
    Ok(json!({
        "protocolVersion": version,
        "capabilities": { "tools": {} },
        "serverInfo": server(),
        "instructions": instructions(ctx),
    }))
}

fn discover(ctx: &Ctx) -> Value {
    json!({
        "supportedVersions": versions(),
        "capabilities": { "tools": {} },
        "instructions": instructions(ctx),
    })
}

/// What a model should know before its first call.
fn instructions(ctx: &Ctx) -> String {
    let usable = ctx.catalog.profiles.iter().filter(|profile| profile.usable);
    let profiles: Vec<&str> = usable.map(|profile| profile.name.as_str()).collect();
    format!(
        "Longhaul runs work that takes minutes to days and must not be lost: jobs of any kind, and runs of many prompts to a model. \
         Work is stored first and done by workers, so a call returns an id at once: look at it with get_job, wait with wait_job \
         (at most 60 s a call, call it again), read answers with get_results. An id is a job's, or the name of a run or process. \
         Answers are cut to a bounded size and say how to get the rest. Profiles that can be asked, for model names such as \
         PROFILE/MODEL: {}.",
        profiles.join(", ")
    )
}

fn list(access: &Access, params: &Map<String, Value>) -> Result<Value, RpcError> {
    // There is one page.
    if params.get("cursor").is_some_and(|cursor| !cursor.is_null()) {
        return Err(RpcError::new(RpcError::INVALID_PARAMS, "params.cursor is none that this server gave"));
    }
    let tools: Vec<Value> =
        Tool::ALL.into_iter().filter(|tool| access.allows(tool.needs())).map(Tool::described).collect();
    Ok(json!({ "tools": tools }))
}

async fn call(ctx: &Ctx, access: &Access, request: &Request) -> Result<Value, RpcError> {
    let Some(name) = request.tool() else {
        return Err(RpcError::new(RpcError::INVALID_PARAMS, "params.name is missing: the tool to call"));
    };
    let Some(tool) = Tool::named(name) else {
        return Err(RpcError::new(RpcError::INVALID_PARAMS, format!("Unknown tool: {name}")));
    };
    let arguments = match request.params.get("arguments") {
        None | Some(Value::Null) => Value::Object(Map::new()),
        Some(arguments) => arguments.clone(),
    };
    let result = tools::call(ctx, access, tool, arguments).await;
    Ok(tools::result(result))
}
