//! Jobs that are taken, and jobs that are refused with the field's name.

use longhaul_queue::RetryPolicy;
use longhaul_queue::job::Retention;

use super::*;

const NOW: Timestamp = Timestamp::from_millis(1_000_000);

fn read(text: &str) -> JobIn {
    serde_json::from_str(text).expect("a job")
}

#[test]
fn a_job_may_say_everything_and_comes_back_as_it_went() {
    let text = r#"{"kind":"k","payload":{"n":12345678901234567890},"queue":"q","process_id":"p","priority":-3,"delay_ms":5000,
        "after_process":"x","helper":true,"options":{"unique":{"key":"u","window":{"since":"success","for_ms":3600000}},
        "max_attempts":5,"tags":["a"],"retry":{"backoff":"fixed","delay_ms":2000,"jitter":false},"run_limit_ms":600000,
        "retention":{"retention":"delete_on_success"}}}"#;
    let job = read(text).into_job(&Refs::default(), NOW).expect("valid");
    assert_eq!(job.payload.as_str(), r#"{"n":12345678901234567890}"#);
    assert_eq!(job.run_at, Some(NOW + Duration::from_secs(5)));
    assert_eq!((job.priority, job.helper, job.options.max_attempts), (-3, true, Some(5)));
    assert_eq!(job.options.retry, Some(RetryPolicy::fixed(Duration::from_secs(2)).without_jitter()));
    assert_eq!(job.options.retention, Some(Retention::DeleteOnSuccess));
    let sent = serde_json::to_string(&JobIn::from(job.clone())).expect("JSON");
    assert_eq!(read(&sent).into_job(&Refs::default(), NOW), Ok(job));
}

#[test]
fn what_does_not_fit_is_named_by_its_field() {
    let cases = [
        (r#"{"kind":"k","delay_ms":1,"run_at":2}"#, "delay_ms", "exclude each other"),
        (r#"{"kind":"k","depends_on":["a"]}"#, "depends_on", "\"a\" is neither a ref"),
    ];
    for (text, field, words) in cases {
        let misfit = read(text).into_job(&Refs::default(), NOW).expect_err(text);
        assert!(misfit.field == field && misfit.text.contains(words), "{text}: {misfit}");
    }
    for wrong in [r#"{"kind":"k","quue":"q"}"#, r#"{"payload":1}"#, r#"{"kind":"k","options":{"tag":[]}}"#] {
        serde_json::from_str::<JobIn>(wrong).expect_err(wrong);
    }
}

#[test]
fn a_ref_stands_for_an_id_and_is_given_once() {
    let id = JobId::from_bytes([7; 16]);
    let mut refs = Refs::default();
    let mut parent = read(r#"{"kind":"k","ref":"a"}"#);
    assert_eq!(refs.add(&mut parent, || id), Ok(()));
    assert_eq!(parent.id, Some(id));
    assert_eq!(refs.add(&mut parent, || id).map_err(|misfit| misfit.field), Err("ref"));
    let child = read(r#"{"kind":"k","depends_on":["a",{"job":"a","on_failure":"hold"}]}"#);
    let edges = child.into_job(&refs, NOW).expect("known").depends_on;
    assert_eq!(edges.iter().map(|edge| edge.job_id).collect::<Vec<_>>(), [id, id]);
    assert_eq!([edges[0].on_failure, edges[1].on_failure], [OnFailure::Cancel, OnFailure::Hold]);
}
