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

/// What every command gets of the worker's environment: where programs, folders and texts are, and nothing that opens a door.
const USUAL: [&str; 12] = [
    "PATH", "HOME", "USER", "LOGNAME", "SHELL", "PWD", "LANG", "LANGUAGE", "TZ", "TMPDIR", "TERM", "HOSTNAME",
];
/// The same for families of names.
const USUAL_PREFIXES: [&str; 2] = ["LC_", "XDG_"];

/// Of the worker's variables those that are usual, and those that `pass` names.
pub(super) fn passed(own: Vec<(OsString, OsString)>, pass: &[String]) -> Vec<(OsString, OsString)> {
    let is_passed = |name: &str| {
        USUAL.contains(&name)
            || USUAL_PREFIXES.iter().any(|prefix| name.starts_with(prefix))
            || pass.iter().any(|wanted| wanted == name)
    };
    own.into_iter().filter(|(name, _)| name.to_str().is_some_and(is_passed)).collect()
}
