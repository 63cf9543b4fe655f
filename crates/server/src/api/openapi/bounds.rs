//! Bounds and forms that the handlers check by hand, told to programs: whoever makes requests from the description alone, a
//! generated client or a fuzzer, makes none that is refused for its form.

use longhaul_llm::catalog;
use longhaul_pipeline::{OwnNames, webhooks};
use longhaul_queue::limits::{
    CLAIM_MAX, INSERT_MAX, LOG_LINES_MAX, NAME_BYTES_MAX, PAGE_MAX, PARENTS_MAX, SEARCH_BYTES_MAX, TAGS_MAX,
};
use longhaul_sheets::settings::CATEGORIES_MAX;
use serde_json::{Map, Value, json};

/// The most that amounts of money can count, in whole dollars.
const DOLLARS_MAX: u64 = 9_223_372_036;

/// What no field alone can say: which fields belong together or exclude each other, and forms that Rust types of other crates have.
/// A part of a schema for each schema.
const RULES: &str = include_str!("rules.json");

/// Adds what is known of parameters and of the fields of bodies.
pub(super) fn add(api: &mut Value, names: &OwnNames) {
    name_unsigned(api);
    add_to_schemas(&mut api["components"]["schemas"], names);
    let paths = api.get_mut("paths").and_then(Value::as_object_mut);
    for (path, item) in paths.into_iter().flatten() {
        for operation in item.as_object_mut().into_iter().flat_map(Map::values_mut) {
            let parameters = operation.get_mut("parameters").and_then(Value::as_array_mut);
            for parameter in parameters.into_iter().flatten() {
                let name = parameter["name"].as_str().unwrap_or_default().to_owned();
                extend(&mut parameter["schema"], &of_parameter(path, &name));
            }
        }
    }
}

/// Adds what is known of the fields of bodies.
pub(crate) fn add_to_schemas(schemas: &mut Value, names: &OwnNames) {
    for (schema, rule) in rules() {
        merge(&mut schemas[schema], rule);
    }
    for (schema, field, bounds) in fields(names) {
        if let Some(described) = schemas.pointer_mut(&format!("/{schema}/properties/{field}")) {
            extend(described, &bounds);
        }
    }
}

/// What the table below or the rules name and the description does not have: a field that was renamed since. `api` is the
/// description without them.
#[cfg(test)]
pub(super) fn stale(api: &Value, names: &OwnNames) -> Vec<String> {
    let rules = rules();
    let of_rules = rules.iter().flat_map(|(schema, rule)| {
        // Schemas that only the rules know describe themselves.
        let is_known = api.pointer(&format!("/components/schemas/{schema}")).is_some();
        let fields = rule["properties"].as_object().filter(|_| is_known).into_iter().flat_map(Map::keys);
        fields.map(|field| (schema.clone(), field.clone())).collect::<Vec<_>>()
    });
    let of_table = fields(names).into_iter().map(|(schema, field, _)| (schema.to_owned(), field.to_owned()));
    let paths = of_table
        .chain(of_rules)
        .map(|(schema, field)| format!("/components/schemas/{schema}/properties/{field}"));
    paths.filter(|path| api.pointer(path).is_none()).collect()
}

fn rules() -> Map<String, Value> {
    serde_json::from_str(RULES).unwrap_or_default()
}

/// Puts a part of a schema into the whole. An object beside a list is a part of each of its members that have properties.
pub(crate) fn merge(schema: &mut Value, part: Value) {
    match (schema, part) {
        (Value::Object(schema), Value::Object(part)) => {
            for (name, value) in part {
                merge(schema.entry(name).or_insert(Value::Null), value);
            }
        }
        (Value::Array(members), part @ Value::Object(_)) => {
            let objects = members.iter_mut().filter(|member| member.get("properties").is_some());
            objects.for_each(|member| merge(member, part.clone()));
        }
        (schema, part) => *schema = part,
    }
}

/// Rust's unsigned numbers are described as signed ones without negatives, which leaves out their upper half.
fn name_unsigned(schema: &mut Value) {
    match schema {
        Value::Object(fields) => {
            let is_integer = match fields.get("type") {
                Some(Value::Array(types)) => types.iter().any(|name| name == "integer"),
                Some(name) => name == "integer",
                None => false,
            };
            if is_integer && fields.get("minimum").and_then(Value::as_u64) == Some(0) {
                let is_short = fields.get("format").is_some_and(|format| format == "int32");
                let (format, most) =
                    if is_short { ("uint32", u64::from(u32::MAX)) } else { ("uint64", u64::MAX) };
                fields.insert("format".to_owned(), format.into());
                fields.insert("maximum".to_owned(), most.into());
            }
            fields.values_mut().for_each(name_unsigned);
        }
        Value::Array(members) => members.iter_mut().for_each(name_unsigned),
        _ => {}
    }
}

fn extend(schema: &mut Value, bounds: &Value) {
    if let (Some(schema), Some(bounds)) = (schema.as_object_mut(), bounds.as_object()) {
        schema.extend(bounds.clone());
    }
}

/// A name: not empty, not long, on one line.
fn name() -> Value {
    json!({ "minLength": 1, "maxLength": NAME_BYTES_MAX, "pattern": "^[^\\u0000-\\u001f\\u007f-\\u009f]*$" })
}

/// A name that is not one of Longhaul's own: what such names look like is left out.
fn foreign_name(own: &str) -> Value {
    let mut name = name();
    name["pattern"] = format!("^(?!{own})[^\\u0000-\\u001f\\u007f-\\u009f]*$").into();
    name
}

/// Kinds that can be enqueued and claimed.
fn foreign_kind(names: &OwnNames) -> Value {
    foreign_name(&names.kind_prefixes().join("|").replace('.', "\\."))
}

/// Queues that can be enqueued to and claimed from.
fn foreign_queue(names: &OwnNames) -> Value {
    let runs = names.run_prefixes().join("|");
    foreign_name(&format!("({})$|{runs}", names.queues().join("|")))
}

/// Processes that jobs can be enqueued to.
fn foreign_process(names: &OwnNames) -> Value {
    let runs = names.run_prefixes().join("|");
    foreign_name(&format!("({runs})([0-9a-f]{{12}}|b[0-9a-f]{{32}})$"))
}

fn of_parameter(path: &str, name_of: &str) -> Value {
    let is_of_jobs = path.starts_with("/api/v1/jobs/{id}") || path.ends_with("/deliveries/{id}/resend");
    match name_of {
        "limit" => json!({ "minimum": 1, "maximum": PAGE_MAX }),
        "id" if is_of_jobs => json!({ "format": "uuid" }),
        "name" if path.starts_with("/api/v1/webhooks") => {
            let mut name = name();
            name["maxLength"] = webhooks::NAME_BYTES_MAX.into();
            name
        }
        "name" => name(),
        "wait" => {
            let part = "(\\.[0-9]{1,3})?";
            let forms = format!("^[0-9]{{1,5}}{part}ms$|^[0-2]?[0-9]{{1,2}}{part}s?$|^[0-4]{part}m$|^5m$");
            json!({ "pattern": forms })
        }
        "state" => {
            let state = "(blocked|scheduled|ready|running|parked|succeeded|failed|cancelled)";
            json!({ "pattern": format!("^({state}(,{state})*)?$") })
        }
        "cursor" if path.ends_with("/blanks") => json!({ "pattern": "^u[0-9a-f]{1,15}-[0-9a-f]{1,8}$" }),
        "cursor" if path != "/api/v1/processes" => json!({ "pattern": "^s[0-9a-f]{1,15}$" }),
        "search" => json!({ "maxLength": SEARCH_BYTES_MAX }),
        "Idempotency-Key" => json!({ "minLength": 1, "maxLength": 255, "pattern": "^[!-~]+$" }),
        _ => json!({}),
    }
}

/// Schemas, fields and what holds for them.
fn fields(names: &OwnNames) -> Vec<(&'static str, &'static str, Value)> {
    let seconds = |least: u32, most: u32| json!({ "minimum": least, "maximum": most });
    // Longer times cannot be counted.
    let delay = || json!({ "minimum": 0, "exclusiveMaximum": u64::MAX as f64 });
    let dollars = || json!({ "minimum": 0, "maximum": DOLLARS_MAX });
    let model = || json!({ "minLength": 1, "maxLength": catalog::MODEL_BYTES_MAX });
    let tags = || json!({ "maxItems": TAGS_MAX - 1, "items": with_type("string", &name()) });
    let mut fields = vec![
        ("NewJob", "depends_on", json!({ "maxItems": PARENTS_MAX })),
        ("ManyJobs", "jobs", json!({ "maxItems": INSERT_MAX })),
        ("JobOptions", "max_attempts", json!({ "minimum": 1 })),
        ("JobOptions", "tags", json!({ "maxItems": TAGS_MAX, "items": with_type("string", &name()) })),
        ("Filter", "search", json!({ "maxLength": SEARCH_BYTES_MAX })),
        ("ClaimIn", "limit", json!({ "minimum": 1, "maximum": CLAIM_MAX })),
        ("ClaimIn", "lease_seconds", seconds(1, 3_600)),
        ("ClaimIn", "wait_seconds", seconds(0, 300)),
        (
            "ClaimIn",
            "queues",
            json!({ "minItems": 1, "maxItems": 1_000, "items": with_type("string", &foreign_queue(names)) }),
        ),
        (
            "ClaimIn",
            "kinds",
            json!({ "maxItems": 1_000, "items": with_type("string", &foreign_kind(names)) }),
        ),
        ("ExtendIn", "lease_seconds", seconds(1, 3_600)),
        ("ExtendIn", "leases", json!({ "maxItems": CLAIM_MAX })),
        ("SettleIn", "items", json!({ "maxItems": CLAIM_MAX })),
        ("SaveIn", "log", json!({ "maxItems": LOG_LINES_MAX })),
        ("ContinueIn", "after_seconds", delay()),
        ("RetryOutcome", "after_seconds", delay()),
        ("ThrottleIn", "after_seconds", delay()),
        ("QueueIn", "ageing_ms", json!({ "minimum": 1, "maximum": 31_536_000_000_u64 })),
        ("ParentRule", "on_failure", json!({ "enum": ["cancel", "run", "hold"] })),
        ("ParkIn", "on_timeout", json!({ "enum": ["resume", "retry", "fail"] })),
        ("ScheduleIn", "missed", json!({ "enum": ["skip", "once", "all"] })),
        ("WebhookIn", "url", json!({ "format": "uri", "pattern": "^https?://" })),
        ("SignalIn", "ids", json!({ "items": { "type": "string", "format": "uuid" } })),
        (
            "ConsumeIn",
            "ids",
            json!({ "items": { "type": "string", "format": "uuid" }, "maxItems": INSERT_MAX }),
        ),
        ("ResumeIn", "max_cost_usd", dollars()),
        ("RunIn", "temperature", json!({ "minimum": 0 })),
        ("SheetIn", "categories", json!({ "maxItems": CATEGORIES_MAX })),
        ("NewJob", "kind", foreign_kind(names)),
        ("NewJob", "queue", foreign_queue(names)),
        ("NewJob", "process_id", foreign_process(names)),
    ];
    for schema in ["RunIn", "SheetIn"] {
        fields.extend([(schema, "model", model()), (schema, "fallback_model", model())]);
        fields.extend([(schema, "tags", tags()), (schema, "max_cost_usd", dollars())]);
    }
    let named: [(&'static str, &[&'static str]); 8] = [
        ("NewJob", &["after_process"]),
        ("SignalIn", &["key"]),
        ("CategoryIn", &["name"]),
        ("RunIn", &["profile"]),
        ("SheetIn", &["profile", "fallback_profile"]),
        ("JobOptions", &["title", "owner", "trace", "fair_key"]),
        ("ClaimIn", &["worker", "host"]),
        ("ParkIn", &["key"]),
    ];
    for (schema, names) in named {
        fields.extend(names.iter().map(|field| (schema, *field, name())));
    }
    fields
}

fn with_type(kind: &str, bounds: &Value) -> Value {
    let mut schema = json!({ "type": kind });
    extend(&mut schema, bounds);
    schema
}
