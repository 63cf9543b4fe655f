//! Lines and what they ask for.

use super::*;

const NOW: Timestamp = Timestamp::from_millis(1_000_000);

fn decided(line: &str) -> Outcome {
    match parse(line, NOW) {
        Ok(Control::Decide(outcome)) => outcome,
        other => panic!("{line}: {other:?}"),
    }
}

#[test]
fn only_objects_with_the_key_are_for_the_queue() {
    assert!(is_control(r#"{"longhaul":"log","text":"x"}"#));
    for line in ["", "{}", "[1]", r#""longhaul""#, r#"{"result":{"longhaul":1}}"#, "{\"longhaul\""] {
        assert!(!is_control(line), "{line}");
    }
}

#[test]
fn decisions_become_outcomes() {
    let outcome = decided(r#"{"longhaul":"continue","after":"5s","data":{"n":12345678901234567890}}"#);
    let data = Some(Json::trusted(r#"{"n":12345678901234567890}"#));
    assert_eq!(outcome, Outcome::Continue { after: Some(Duration::from_secs(5)), data });

    let outcome = decided(r#"{"longhaul":"park","key":"k","timeout":"1h","on_timeout":"fail"}"#);
    let park = Park {
        key: "k".to_owned(),
        until: Some(NOW + Duration::from_secs(3600)),
        on_timeout: OnTimeout::Fail,
    };
    assert_eq!(outcome, Outcome::Park { park, data: None });

    let outcome = decided(r#"{"longhaul":"retry","error":"429","after":"30s","class":"throttle"}"#);
    let error = JobError::new(Reason::Throttle, "429");
    assert_eq!(outcome, Outcome::Retry { error, after: Some(Duration::from_secs(30)), data: None });

    let error = JobError::new(Reason::Failure, "no");
    assert_eq!(decided(r#"{"longhaul":"fail","error":"no"}"#), Outcome::Fail(error));
}

#[test]
fn a_wrong_line_is_refused_with_the_reason() {
    let cases = [
        (r#"{"longhaul":"contine"}"#, "unknown variant `contine`"),
        (r#"{"longhaul":"continue","afer":"5s"}"#, "unknown field `afer`"),
        (r#"{"longhaul":"continue","after":"soon"}"#, "not a duration"),
        (r#"{"longhaul":"park"}"#, "missing field `key`"),
        (r#"{"longhaul":"park","key":"k","until":"1h","timeout":"1h"}"#, "exclude each other"),
        (r#"{"longhaul":"enqueue","job":{"knd":"x"}}"#, "unknown field `knd`"),
    ];
    for (line, expected) in cases {
        let error = parse(line, NOW).expect_err(line);
        assert!(error.contains(expected), "{line}: {error}");
    }
}

#[test]
fn a_job_keeps_its_payload_to_the_letter() {
    let Ok(Control::Enqueue(job)) =
        parse(r#"{"longhaul":"enqueue","job":{"kind":"k","payload":[1.10]}}"#, NOW)
    else {
        panic!("not an enqueue");
    };
    assert_eq!(job.payload.as_str(), "[1.10]");
}
