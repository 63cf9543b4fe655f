//! What a command learns through its environment. Long values go into files, since the system bounds the environment.

use std::ffi::OsString;
use std::io::{self, Write as _};

use longhaul_queue::{JobContext, Json};
use tempfile::NamedTempFile;

/// A longer value is put into a file, named by the variable with `_FILE` at its end.
const VALUE_BYTES_MAX: usize = 32_000;

/// Variables of one run; its files go when it is dropped.
pub(super) struct Environment {
    pub(super) variables: Vec<(&'static str, OsString)>,
    _files: Vec<NamedTempFile>,
}

/// The environment for one run.
pub(super) fn of(context: &JobContext) -> io::Result<Environment> {
    let job = context.job();
    let mut variables: Vec<(&'static str, OsString)> = vec![
        ("LONGHAUL_JOB_ID", context.id().to_string().into()),
        ("LONGHAUL_KIND", job.kind.clone().into()),
        ("LONGHAUL_QUEUE", job.queue.clone().into()),
        ("LONGHAUL_ATTEMPT", context.attempt().to_string().into()),
        ("LONGHAUL_FENCE", context.fence().to_string().into()),
        ("LONGHAUL_IDEMPOTENCY_KEY", context.idempotency_key("exec").into()),
    ];
    if let Some(process_id) = &job.process_id {
        variables.push(("LONGHAUL_PROCESS", process_id.as_str().into()));
    }
    if let Some(trace) = &job.options.trace {
        variables.push(("TRACEPARENT", trace.into()));
    }
    let invalid = |error: longhaul_queue::Error| io::Error::other(error.to_string());
    let parents =
        (!context.parents().is_empty()).then(|| Json::of(context.parents())).transpose().map_err(invalid)?;
    let wake = context.wake().map(Json::of).transpose().map_err(invalid)?;
    let values = [
        ("LONGHAUL_DATA", "LONGHAUL_DATA_FILE", context.data::<Json>().map_err(invalid)?),
        ("LONGHAUL_PARENTS", "LONGHAUL_PARENTS_FILE", parents),
        ("LONGHAUL_WAKE", "LONGHAUL_WAKE_FILE", wake),
    ];
    let mut files = Vec::new();
    for (name, file_name, value) in values {
        match value {
            Some(value) if value.len() > VALUE_BYTES_MAX => {
                let mut file = NamedTempFile::with_prefix("longhaul-")?;
                file.write_all(value.as_str().as_bytes())?;
                variables.push((file_name, file.path().into()));
                files.push(file);
            }
            Some(value) => variables.push((name, value.as_str().into())),
            None => {}
        }
    }
    Ok(Environment { variables, _files: files })
}

/// Every name that may be set: a worker that itself runs as a job must not hand its own values on.
pub(super) const NAMES: [&str; 14] = [
    "LONGHAUL_JOB_ID",
    "LONGHAUL_KIND",
    "LONGHAUL_QUEUE",
    "LONGHAUL_PROCESS",
    "LONGHAUL_ATTEMPT",
    "LONGHAUL_FENCE",
    "LONGHAUL_IDEMPOTENCY_KEY",
    "LONGHAUL_DATA",
    "LONGHAUL_DATA_FILE",
    "LONGHAUL_PARENTS",
    "LONGHAUL_PARENTS_FILE",
    "LONGHAUL_WAKE",
    "LONGHAUL_WAKE_FILE",
    "TRACEPARENT",
];
