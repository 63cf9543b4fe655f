//! A job on one line of JSON, spelled as in the HTTP API: for `enqueue -` and for the control line `enqueue` of a command. Unknown
//! fields are refused, so that a misspelt one is not ignored in silence.

use longhaul_api::job_in::{JobIn, Misfit, Refs};
use longhaul_api::job_options::OptionsIn;
use longhaul_queue::{NewJob, Timestamp};

use crate::pipelines::own_names;

/// Reads one line.
pub(crate) fn read(line: &str) -> Result<JobIn, String> {
    // serde would take a list as well, by the order of the fields, which nobody could rely on.
    if !line.trim_start().starts_with('{') {
        return Err("expected a JSON object such as {\"kind\":\"echo\"} (column 1)".to_owned());
    }
    serde_json::from_str(line).map_err(|error| describe(&error))
}

/// The job to store, unless it takes a name of the program's own.
pub(crate) fn new_job(job: JobIn, refs: &Refs, now: Timestamp) -> Result<NewJob, Misfit> {
    job.check_names(&own_names())?;
    if job.webhook.is_some() {
        return Err(Misfit::new("webhook", "only a server has webhooks: send the job to its API"));
    }
    job.into_job(refs, now)
}

/// A job with the options of the command where it does not say otherwise.
pub(crate) fn with_defaults(job: JobIn, defaults: &JobIn) -> JobIn {
    let has_start = job.run_at.is_some() || job.delay_ms.is_some();
    let depends_on = defaults.depends_on.iter().cloned().chain(job.depends_on).collect();
    JobIn {
        queue: job.queue.or_else(|| defaults.queue.clone()),
        process_id: job.process_id.or_else(|| defaults.process_id.clone()),
        priority: job.priority.or(defaults.priority),
        run_at: if has_start { job.run_at } else { defaults.run_at },
        expires_at: job.expires_at.or(defaults.expires_at),
        depends_on,
        after_process: job.after_process.or_else(|| defaults.after_process.clone()),
        options: options(job.options, &defaults.options),
        ..job
    }
}

/// Those that the command line can set; the others are the job's own.
fn options(own: OptionsIn, defaults: &OptionsIn) -> OptionsIn {
    OptionsIn {
        title: own.title.or_else(|| defaults.title.clone()),
        owner: own.owner.or_else(|| defaults.owner.clone()),
        tags: defaults.tags.iter().cloned().chain(own.tags).collect(),
        trace: own.trace.or_else(|| defaults.trace.clone()),
        max_attempts: own.max_attempts.or(defaults.max_attempts),
        retry: own.retry.or_else(|| defaults.retry.clone()),
        run_limit_ms: own.run_limit_ms.or(defaults.run_limit_ms),
        fair_key: own.fair_key.or_else(|| defaults.fair_key.clone()),
        unique: own.unique.or_else(|| defaults.unique.clone()),
        retention: own.retention.or(defaults.retention),
        ..own
    }
}

/// serde's text without its line number: the caller knows the real one.
pub(crate) fn describe(error: &serde_json::Error) -> String {
    let text = error.to_string();
    match text.rfind(" at line ") {
        Some(at) => format!("{} (column {})", &text[..at], error.column()),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp::from_millis(1_000_000);

    fn job(line: &str) -> Result<NewJob, String> {
        new_job(read(line)?, &Refs::default(), NOW).map_err(|misfit| misfit.to_string())
    }

    #[test]
    fn a_refused_line_names_the_field() {
        let cases = [
            (r#"{"kind":"k","quue":"q"}"#, "unknown field `quue`"),
            (r#"{"payload":1}"#, "missing field `kind`"),
            (r#"{"kind":"k","delay_ms":1,"run_at":2}"#, "exclude each other"),
            (r#"{"kind":"k","depends_on":["a"]}"#, "`depends_on`: \"a\" is neither a ref"),
            (r#"{"kind":"llm.request"}"#, "`kind`"),
            (r#"{"kind":"k","queue":"webhooks"}"#, "`queue`"),
            (r#"{"kind":"k","webhook":"ops"}"#, "`webhook`: only a server"),
            (r#"{"kind":"k""#, "EOF"),
            ("[\"k\"]", "expected a JSON object"),
        ];
        for (line, expected) in cases {
            let error = job(line).expect_err(line);
            assert!(error.contains(expected), "{line}: {error}");
        }
    }

    #[test]
    fn options_of_the_command_are_defaults_and_labels_and_parents_add_up() {
        let defaults = read(
            r#"{"kind":"-","queue":"q","priority":3,"run_at":5,"depends_on":["a"],"options":{"tags":["x"],"title":"t"}}"#,
        );
        let line = r#"{"kind":"k","priority":0,"delay_ms":9,"depends_on":["b"],"options":{"tags":["y"],"max_crashes":7}}"#;
        let job = with_defaults(read(line).expect("valid"), &defaults.expect("valid"));
        assert_eq!((job.queue.as_deref(), job.priority), (Some("q"), Some(0)));
        assert_eq!((job.run_at, job.delay_ms), (None, Some(9)), "a line's own start counts");
        assert_eq!((job.depends_on.len(), job.options.tags.join(",")), (2, "x,y".to_owned()));
        assert_eq!((job.options.title.as_deref(), job.options.max_crashes), (Some("t"), Some(7)));
    }
}
