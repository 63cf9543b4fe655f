//! Bounds and forms that the handlers check by hand, told to programs: whoever makes requests from the description alone, a
//! generated client or a fuzzer, makes none that is refused for its form.

use longhaul_queue::limits::{
    CLAIM_MAX, INSERT_MAX, LOG_LINES_MAX, NAME_BYTES_MAX, PAGE_MAX, PARENTS_MAX, SEARCH_BYTES_MAX, TAGS_MAX,
};
use serde_json::{Map, Value, json};

/// Adds what is known of parameters and of the fields of bodies.
pub(super) fn add(api: &mut Value) {
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
    for (schema, field, bounds) in fields() {
        if let Some(described) = api.pointer_mut(&format!("/components/schemas/{schema}/properties/{field}"))
        {
            extend(described, &bounds);
        }
    }
}

/// What the table below names and the description does not have: a field that was renamed since.
#[cfg(test)]
pub(super) fn stale(api: &Value) -> Vec<String> {
    let fields = fields().into_iter();
    let paths = fields.map(|(schema, field, _)| format!("/components/schemas/{schema}/properties/{field}"));
    paths.filter(|path| api.pointer(path).is_none()).collect()
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

fn of_parameter(path: &str, name_of: &str) -> Value {
    let is_of_jobs = path.starts_with("/api/v1/jobs/{id}") || path.ends_with("/deliveries/{id}/resend");
    match name_of {
        "limit" => json!({ "minimum": 1, "maximum": PAGE_MAX }),
        "id" if is_of_jobs => json!({ "format": "uuid" }),
        "name" => name(),
        "wait" => json!({ "pattern": "^[0-9]{1,5}ms$|^[0-2]?[0-9]{1,2}s?$|^[0-5]m$" }),
        "state" => {
            let state = "(blocked|scheduled|ready|running|parked|succeeded|failed|cancelled)";
            json!({ "pattern": format!("^{state}(,{state})*$") })
        }
        "cursor" if path != "/api/v1/processes" => json!({ "pattern": "^s[0-9a-f]{1,15}$" }),
        "search" => json!({ "maxLength": SEARCH_BYTES_MAX }),
        "Idempotency-Key" => json!({ "minLength": 1, "maxLength": 255, "pattern": "^[!-~]+$" }),
        _ => json!({}),
    }
}

/// Schemas, fields and what holds for them.
fn fields() -> Vec<(&'static str, &'static str, Value)> {
    let seconds = |least: u32, most: u32| json!({ "minimum": least, "maximum": most });
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
            json!({ "minItems": 1, "maxItems": 1_000, "items": with_type("string", &name()) }),
        ),
        ("ClaimIn", "kinds", json!({ "maxItems": 1_000, "items": with_type("string", &name()) })),
        ("ExtendIn", "lease_seconds", seconds(1, 3_600)),
        ("ExtendIn", "leases", json!({ "maxItems": CLAIM_MAX })),
        ("SettleIn", "items", json!({ "maxItems": CLAIM_MAX })),
        ("SaveIn", "log", json!({ "maxItems": LOG_LINES_MAX })),
        ("ContinueIn", "after_seconds", json!({ "minimum": 0 })),
        ("ThrottleIn", "after_seconds", json!({ "minimum": 0 })),
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
        ("ResumeIn", "max_cost_usd", json!({ "minimum": 0 })),
        ("ResumeSheetIn", "max_cost_usd", json!({ "minimum": 0 })),
        ("RunIn", "max_cost_usd", json!({ "minimum": 0 })),
        ("SheetIn", "max_cost_usd", json!({ "minimum": 0 })),
        ("RunIn", "temperature", json!({ "minimum": 0 })),
    ];
    let named: [(&'static str, &[&'static str]); 4] = [
        ("NewJob", &["kind", "queue", "process_id", "after_process"]),
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
