//! The form of spans on the wire.

use std::time::Duration;

use longhaul_queue::TraceContext;

use super::super::spans::Fields;
use super::*;

const OWN: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

fn wire(name: &'static str, fields: Vec<(&'static str, Value)>) -> Json {
    let anchor = Anchor { at: Instant::now(), unix_nanos: 1_700_000_000_000_000_000 };
    let own = TraceContext::parse(OWN).expect("a traceparent");
    let closed = Closed {
        own,
        parent: Some(0x00ab),
        link: Some(TraceContext { trace_id: 1, ..own }),
        name,
        started: anchor.at + Duration::from_nanos(5),
        ended: anchor.at + Duration::from_nanos(7),
        fields: Fields(fields),
    };
    let body: Json = serde_json::from_slice(&body(&[closed], "me", anchor)).expect("JSON");
    let resource = &body["resourceSpans"][0];
    assert_eq!(resource["resource"]["attributes"][0], attribute("service.name", &text("me")));
    resource["scopeSpans"][0]["spans"][0].clone()
}

fn text_of(value: &str) -> Value {
    Value::Text(value.to_owned())
}

#[test]
fn ids_times_parent_and_link() {
    let span = wire("x", Vec::new());
    assert_eq!(span["traceId"], "0af7651916cd43dd8448eb211c80319c");
    assert_eq!(
        (&span["spanId"], &span["parentSpanId"]),
        (&"b7ad6b7169203331".into(), &"00000000000000ab".into())
    );
    assert_eq!(span["startTimeUnixNano"], "1700000000000000005");
    assert_eq!(span["endTimeUnixNano"], "1700000000000000007");
    assert_eq!(span["links"][0]["traceId"], "00000000000000000000000000000001");
    assert_eq!((&span["name"], &span["kind"], &span["status"]), (&"x".into(), &1.into(), &Json::Null));
}

#[test]
fn a_run_has_the_names_of_messaging() {
    let span = wire(
        "run",
        vec![
            ("slice", text_of("queue")),
            ("queue", text_of("q")),
            ("job_id", text_of("j")),
            ("fence", Value::Int(7)),
            ("error.type", text_of("panic")),
            ("otel.status_code", text_of("ERROR")),
        ],
    );
    assert_eq!(
        (&span["name"], &span["kind"], &span["status"]["code"]),
        (&"process q".into(), &5.into(), &2.into())
    );
    let expected = json!([
        attribute("messaging.system", &text("longhaul")),
        attribute("messaging.operation.name", &text("process")),
        attribute("messaging.operation.type", &text("process")),
        attribute("messaging.destination.name", &text("q")),
        attribute("messaging.message.id", &text("j")),
        attribute("longhaul.job.fence", &json!({ "intValue": "7" })),
        attribute("error.type", &text("panic")),
    ]);
    assert_eq!(span["attributes"], expected);
}

#[test]
fn values_keep_their_types() {
    let span = wire(
        "chat",
        vec![
            ("otel.name", text_of("chat m")),
            ("otel.kind", text_of("client")),
            ("a", Value::Float(0.5)),
            ("b", Value::Bool(true)),
            (genai::FINISH_REASONS, text_of("stop")),
        ],
    );
    assert_eq!((&span["name"], &span["kind"]), (&"chat m".into(), &3.into()));
    let expected = json!([
        attribute("a", &json!({ "doubleValue": 0.5 })),
        attribute("b", &json!({ "boolValue": true })),
        attribute(genai::FINISH_REASONS, &json!({ "arrayValue": { "values": [text("stop")] } })),
    ]);
    assert_eq!(span["attributes"], expected);
}
