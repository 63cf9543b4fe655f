//! Lines that are taken, and lines that are refused with the field's name.

use std::time::Duration;

use super::*;

const NOW: Timestamp = Timestamp::from_millis(1_000_000);

fn job(line: &str) -> Result<NewJob, String> {
    JobSpec::parse(line)?.into_job(&NewJob::new("", Json::null()), &Refs::new(), NOW)
}

#[test]
fn a_line_may_say_everything_about_a_job() {
    let line = r#"{"kind":"k","payload":{"n":12345678901234567890},"queue":"q","process":"p","priority":-3,"delay":"5s",
        "after_process":"x","unique":{"key":"u","window":"1h","since":"success"},"max_attempts":5,"tags":["a"],
        "retry":"fixed:2s,no-jitter","run_limit":"10m","retention":"delete-on-success","helper":true}"#;
    let job = job(line).expect("valid");
    assert_eq!(job.payload.as_str(), r#"{"n":12345678901234567890}"#);
    assert_eq!(job.run_at, Some(NOW + Duration::from_secs(5)));
    assert_eq!((job.priority, job.helper, job.options.max_attempts), (-3, true, Some(5)));
    assert_eq!(job.options.retry, Some(RetryPolicy::fixed(Duration::from_secs(2)).without_jitter()));
    assert_eq!(job.options.retention, Some(Retention::DeleteOnSuccess));
    let window = Some(Window::Success { length: Duration::from_secs(3600) });
    assert_eq!(job.options.unique, Some(Unique { key: "u".to_owned(), window, policy: UniquePolicy::Skip }));
}

#[test]
fn a_refused_line_names_the_field() {
    let cases = [
        (r#"{"kind":"k","quue":"q"}"#, "unknown field `quue`"),
        (r#"{"payload":1}"#, "`kind` is missing"),
        (r#"{"kind":"k","delay":"soon"}"#, "`delay`"),
        (r#"{"kind":"k","delay":"1s","at":"2s"}"#, "exclude each other"),
        (r#"{"kind":"k","after":["@a"]}"#, "no line has \"ref\": \"a\""),
        (r#"{"kind":"k","after":[{"id":"x","why":1}]}"#, "`after`"),
        (r#"{"kind":"k","unique":{"key":"u","policy":"debounce"}}"#, "needs `wait` and `cap`"),
        (r#"{"kind":"k","retention":"for ever"}"#, "`retention`"),
        (r#"{"kind":"k""#, "EOF"),
        ("[\"k\"]", "expected a JSON object"),
    ];
    for (line, expected) in cases {
        let error = job(line).expect_err(line);
        assert!(error.contains(expected), "{line}: {error}");
    }
}

#[test]
fn a_local_name_stands_for_an_id() {
    let id = JobId::from_bytes([7; 16]);
    let refs = Refs::from([("a".to_owned(), id)]);
    let spec =
        JobSpec::parse(r#"{"kind":"k","after":["@a",{"id":"@a","on_failure":"hold"}]}"#).expect("valid");
    let job = spec.into_job(&NewJob::new("", Json::null()), &refs, NOW).expect("known");
    assert_eq!(job.depends_on[0], Dependency { job_id: id, on_failure: OnFailure::Cancel });
    assert_eq!(job.depends_on[1].on_failure, OnFailure::Hold);
}
