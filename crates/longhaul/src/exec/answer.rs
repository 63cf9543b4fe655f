//! What a command says on stdout, and the outcome that follows from it and from how the command ended. The last
//! deciding control line wins over the exit code; without one, stdout is the result. A command that says too much is cut
//! short, which is a failure whatever it decided before.

use longhaul_queue::limits::Limits;
use longhaul_queue::{Clock as _, JobContext, Json, Outcome, SystemClock};

use super::child::End;
use super::control::{self, Control};
use super::retry;

/// What a control line may hold beside a value.
const CONTROL_EXTRA_BYTES_MAX: usize = 64_000;

/// Collects a command's answer line by line.
pub(super) struct Answer<'a> {
    context: &'a JobContext,
    limits: Limits,
    result: String,
    too_long: bool,
    decided: Option<Outcome>,
    /// The first thing that was wrong with the command's own lines.
    mistake: Option<String>,
}

impl<'a> Answer<'a> {
    pub(super) fn new(context: &'a JobContext, limits: Limits) -> Self {
        Self { context, limits, result: String::new(), too_long: false, decided: None, mistake: None }
    }

    /// The longest line that is read in one piece.
    pub(super) fn line_bytes_max(&self) -> u64 {
        (self.limits.value_bytes_max + CONTROL_EXTRA_BYTES_MAX) as u64
    }

    /// Whether there is more than may be stored, so that reading on is of no use.
    pub(super) fn is_too_long(&self) -> bool {
        self.too_long
    }

    /// Takes one line.
    pub(super) async fn line(&mut self, line: &str) {
        if !control::is_control(line) {
            self.add_result(line);
            return;
        }
        if let Err(problem) = self.obey(line).await {
            let text = format!(
                "control line refused: {problem}: {}",
                longhaul_queue::limits::shorten(line.trim(), 200)
            );
            self.context.log(&text);
            self.mistake.get_or_insert(text);
        }
    }

    fn add_result(&mut self, line: &str) {
        self.too_long |= self.result.len() + line.trim_end().len() > self.limits.value_bytes_max;
        if !self.too_long {
            self.result.push_str(line);
        }
    }

    async fn obey(&mut self, line: &str) -> Result<(), String> {
        match control::parse(line, SystemClock.now())? {
            Control::Progress { done, total, message } => match message {
                Some(message) => self.context.progress_with(done, total, message),
                None => self.context.progress(done, total),
            },
            Control::Log(text) => self.context.log(text),
            Control::Save(data) => self.context.save(&data).await.map_err(|error| error.to_string())?,
            Control::Enqueue(job) => {
                self.context.enqueue(*job).map_err(|error| error.to_string())?;
            }
            Control::Decide(outcome) => self.decided = Some(outcome),
        }
        Ok(())
    }

    /// The outcome, now that the command has ended; `told` when it had been asked to end.
    pub(super) fn into_outcome(self, end: End, stderr_tail: &str, told: bool) -> Outcome {
        // First: the command was killed for it, and a decision that it made before need not be its last.
        if self.too_long {
            let max = self.limits.value_bytes_max;
            return retry(format!(
                "stdout is longer than {max} bytes (store.value_bytes_max); write large output to a file and print its path as JSON"
            ));
        }
        if let Some(outcome) = self.decided {
            return outcome;
        }
        match end {
            End::Exit(0) => {}
            // It ended because it was asked to, which is no failure. Under a cancel this becomes `cancelled`.
            End::Exit(_) | End::Signal(_) if told => return Outcome::Continue { after: None, data: None },
            End::Exit(code) => return retry(with_tail(&format!("exit code {code}"), stderr_tail)),
            End::Signal(name) => return retry(with_tail(&format!("killed by {name}"), stderr_tail)),
        }
        // A command whose follow-up job or checkpoint was refused has not done what it wanted to do.
        if let Some(mistake) = self.mistake {
            return retry(mistake);
        }
        let text = self.result.trim();
        if text.is_empty() {
            return Outcome::Done(Json::null());
        }
        Json::parse(text).map_or_else(|error| not_json(text, &error), Outcome::Done)
    }
}

fn not_json(text: &str, error: &longhaul_queue::Error) -> Outcome {
    let start = longhaul_queue::limits::shorten(text, 200);
    retry(format!(
        "stdout is not one JSON value ({error}); to return text, pipe it through: jq -Rs . (stdout was: {start})"
    ))
}

fn with_tail(what: &str, stderr_tail: &str) -> String {
    let tail = stderr_tail.trim();
    if tail.is_empty() {
        format!("the command ended with {what} and said nothing on stderr")
    } else {
        format!("{what}: {tail}")
    }
}
