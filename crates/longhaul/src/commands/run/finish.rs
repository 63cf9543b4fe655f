//! The end of a run: its answers in order, and what they cost.

use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use longhaul_pipelines::bulk::gate::Held;
use longhaul_pipelines::bulk::{Bulk, Estimate, Progress, Run, RunId, manage};
use longhaul_queue::job::JobResult;
use longhaul_queue::limits::PAGE_MAX;
use serde::{Deserialize, Serialize};

use super::follow::code_of;
use crate::answers::{self, ErrorInfo, Item, Outcome};
use crate::app::App;
use crate::args::RunArgs;
use crate::exit::{self, Code, Failure};
use crate::output::{Format, counted, grouped, short_count};
use crate::outputs;
use crate::prompts::{Form, Prompts};

/// Where answers go.
pub(crate) struct Answers<'a> {
    /// Those that have one; stdout by default.
    pub(crate) out: Option<&'a Path>,
    /// Those that failed; among the others by default.
    pub(crate) errors: Option<&'a Path>,
    /// The prompts, for columns that are carried on.
    pub(crate) prompts: Option<&'a Prompts>,
    /// Also over files that are not this run's own.
    pub(crate) force: bool,
}

/// What was written.
#[derive(Debug, Clone, Default)]
pub(crate) struct Written {
    /// Requests without an answer.
    pub(crate) failed: u64,
    /// Answers that were cut off.
    pub(crate) cut_off: u64,
    /// Why the first of them has no answer.
    pub(crate) first_error: Option<String>,
}

/// What a program is told about a run.
#[derive(Serialize)]
struct RunView<'a> {
    id: &'a str,
    progress: &'a Progress,
    /// After a sample: what all prompts will cost.
    #[serde(skip_serializing_if = "Option::is_none")]
    estimate: Option<&'a Estimate>,
}

/// Tells programs how far a run is; people are told on stderr.
pub(crate) fn print_object(
    app: &App,
    run: &Run,
    progress: &Progress,
    estimate: Option<&Estimate>,
) -> Result<()> {
    app.out.one(&RunView { id: run.id.as_str(), progress, estimate }, String::new)
}

/// Writes the answers and says what they cost.
pub(super) async fn finish(
    app: &App,
    args: &RunArgs,
    bulk: &Bulk,
    (run, prompts): (&Run, &Prompts),
    progress: &Progress,
    took: Took,
) -> Result<Code> {
    let ended = progress.status.is_end();
    let answers = Answers {
        out: args.out.as_deref(),
        errors: args.errors.as_deref(),
        prompts: Some(prompts),
        force: args.force,
    };
    if ended {
        let written = write_answers(app, bulk, run, &answers).await?;
        if written.cut_off > 0 {
            app.out.warn(format_args!(
                "cut off at max_tokens: {}, marked with stop = length",
                counted(written.cut_off, "answer")
            ));
        }
        if let Some(error) = &written.first_error {
            app.out.warn(format_args!(
                "without an answer: {}; the first: {error}",
                counted(written.failed, "request")
            ));
        }
    }
    print_summary(app, run, progress, Some(took));
    if ended && args.consume {
        consume(bulk, &run.id).await?;
        app.out.note(format_args!("{} is consumed", run.id));
    }
    Ok(code_of(progress))
}

/// Deletes a run that has ended, with its answers and whatever is known of its files; answers how many jobs that were.
pub(crate) async fn consume(bulk: &Bulk, id: &RunId) -> Result<u64> {
    let deleted = manage::consume(bulk, id).await?;
    outputs::forget(bulk.engine(), id.as_str()).await?;
    Ok(deleted)
}

/// Writes all answers of a run, in order.
pub(crate) async fn write_answers(
    app: &App,
    bulk: &Bulk,
    run: &Run,
    answers: &Answers<'_>,
) -> Result<Written> {
    let written = try_write_answers(app, bulk, run, answers).await;
    written.map_err(|error| {
        if exit::is_closed_pipe(&error) || exit::hint_of(&error).is_some() {
            return error;
        }
        let id = &run.id;
        Failure::new(exit::code_of(&error), format!("{error:#}; the answers of {id} are stored"))
            .hint(format_args!("get them without asking again: longhaul runs results {id} --out FILE"))
            .into()
    })
}

async fn try_write_answers(app: &App, bulk: &Bulk, run: &Run, answers: &Answers<'_>) -> Result<Written> {
    let places = [("--out", answers.out), ("--errors", answers.errors)];
    if !answers.force {
        outputs::refuse_foreign(bulk.engine(), run.id.as_str(), &places).await?;
    }
    let mut writer = answers::Answers::create(options(app, run, answers))?;
    let mut rows = answers.prompts.map(Prompts::lines).transpose()?;
    let mut written = Written::default();
    let (mut after, mut next_row) = (0, 0);
    loop {
        let page = bulk.queue().results(&run.id.process(), after, PAGE_MAX).await?;
        for result in &page.items {
            let index = RunId::index_of(result.id);
            let (custom_id, outcome) = outcome_of(bulk, result).await?;
            match &outcome {
                Outcome::Answer(answer) => written.cut_off += u64::from(answer.stop == CUT_OFF),
                Outcome::Error(error) => {
                    written.failed += 1;
                    written.first_error.get_or_insert_with(|| error.to_string());
                }
            }
            // The file and the results have the same order; what is not among the results is passed over.
            let (mut columns, mut prompt) = (None, None);
            while let Some(rows) = rows.as_mut().filter(|_| next_row <= index) {
                let row = rows.next().transpose()?;
                (columns, prompt) =
                    row.map_or((None, None), |row| (row.columns, answers::prompt_of(&row.body)));
                next_row += 1;
            }
            if rows.is_none() && writer.is_table() {
                let payload: Asked = bulk.queue().get(result.id).await?.payload.to()?;
                prompt = answers::prompt_of(&payload.body);
            }
            writer.write(&Item { index, custom_id, columns, prompt }, &outcome)?;
        }
        match page.next {
            Some(next) => after = next,
            None => break,
        }
    }
    writer.finish()?;
    outputs::remember(bulk.engine(), run.id.as_str(), &places).await;
    if let Some(out) = answers.out {
        app.out.note(format_args!("answers are in {}", out.display()));
    }
    Ok(written)
}

/// How the command line names stdout.
pub(crate) const STDOUT: &str = "-";
/// How an answer says that it was cut off.
const CUT_OFF: &str = "length";

/// The form of answers. Who asks for JSON on stdout gets JSON lines there, whatever the prompts came from.
pub(crate) fn form_of(app: &App, out: &Path, input: Form, delimiter: Option<u8>) -> answers::Form {
    match app.out.format {
        Format::Json | Format::Jsonl if out == Path::new(STDOUT) => answers::Form::json(input),
        Format::Json | Format::Jsonl | Format::Text | Format::None => {
            answers::Form::choose(out, input, delimiter)
        }
    }
}

fn options(app: &App, run: &Run, answers: &Answers<'_>) -> answers::Options {
    let out = match answers.out {
        Some(out) => out,
        None if app.out.format == Format::None => Path::new("/dev/null"),
        None => Path::new(STDOUT),
    };
    let (form, delimiter) = match answers.prompts {
        Some(prompts) => (prompts.form(), prompts.delimiter()),
        None => (Form::named(&run.settings.source.form), None),
    };
    let properties = run.settings.schema.as_ref().and_then(|schema| schema.get("properties")?.as_object());
    let properties = properties.map_or_else(Vec::new, |properties| properties.keys().cloned().collect());
    answers::Options {
        form: form_of(app, out, form, delimiter),
        out: out.to_owned(),
        errors: answers.errors.map(Path::to_owned),
        properties,
        endpoint: run.settings.endpoint,
        input: form,
    }
}

/// A result as it is written, with the caller's name for it; what failed has that in its payload only.
async fn outcome_of(bulk: &Bulk, result: &JobResult) -> Result<(Option<String>, Outcome)> {
    if let Some(value) = &result.result {
        let name: Named = value.to()?;
        return Ok((name.custom_id, Outcome::Answer(value.to()?)));
    }
    let payload: Named = bulk.queue().get(result.id).await?.payload.to()?;
    let text = result.error.as_ref().map_or_else(|| result.state.to_string(), |error| error.text.clone());
    Ok((payload.custom_id, Outcome::Error(ErrorInfo::of_text(&text, result.state.as_str()))))
}

/// What a request asks.
#[derive(Deserialize)]
struct Asked {
    body: serde_json::Value,
}

/// The caller's name for a request.
#[derive(Deserialize)]
struct Named {
    custom_id: Option<String>,
}

/// How long a command took for a run.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Took {
    pub(super) time: Duration,
    /// For all of it; otherwise a part was done before.
    pub(super) all: bool,
}

/// What a run did and cost, on stderr.
pub(crate) fn print_summary(app: &App, run: &Run, progress: &Progress, took: Option<Took>) {
    let mut parts = vec![format!("{} answered", grouped(progress.completed))];
    let open = progress.total - progress.ended().min(progress.total);
    for (count, word) in [(progress.failed, "failed"), (progress.cancelled, "cancelled"), (open, "open")] {
        if count > 0 {
            parts.push(format!("{} {word}", grouped(count)));
        }
    }
    if let Some(Took { time, all }) = took {
        let seconds = time.as_secs_f64();
        let rate = all.then(|| format!(", {:.0} a second", progress.ended() as f64 / seconds.max(0.001)));
        parts.push(format!("{seconds:.1} s{}", rate.unwrap_or_default()));
    }
    app.out.note(format_args!("{}: {}", run.id, parts.join(" · ")));
    for line in spending(progress) {
        app.out.note(line);
    }
    if progress.simulated {
        app.out.note("answers and prices are made up: the simulator was asked");
    }
    match (progress.held, &progress.message) {
        (Some(held), message) => {
            app.out.warn(format_args!(
                "{} is held ({held}): {}",
                run.id,
                message.as_deref().unwrap_or_default()
            ));
            app.out.hint(way_out(held, message.as_deref().unwrap_or_default(), &run.id));
        }
        (None, _) if progress.failed > 0 => {
            app.out.hint(format_args!("see why with longhaul jobs ls --process {} --state failed; ask again with the same command or longhaul runs retry-failed {}", run.id, run.id));
        }
        (None, _) => {}
    }
}

/// Lines about money and tokens.
pub(crate) fn spending(progress: &Progress) -> Vec<String> {
    let spent = &progress.spent;
    let mut cost = spent.spent();
    if let Some(estimated) = progress.estimated() {
        cost += &format!(" (estimated {estimated})");
    }
    let usage = &spent.usage;
    let mut lines = vec![format!(
        "cost         {cost} · {} · {} tokens in, {} out",
        counted(spent.calls, "call"),
        short_count(usage.input()),
        short_count(usage.output()),
    )];
    let counts = [
        (spent.cached, "from the cache"),
        (spent.throttled, "times throttled"),
        (spent.retried, "retried"),
        (spent.repaired, "asked again for shape"),
    ];
    let counts: Vec<String> = counts
        .iter()
        .filter(|(count, _)| *count > 0)
        .map(|(count, word)| format!("{} {word}", grouped(*count)))
        .collect();
    if !counts.is_empty() {
        lines.push(format!("calls        {}", counts.join(" · ")));
    }
    if spent.unknown_calls > 0 {
        lines.push(format!(
            "unknown      {} never came to an end that we saw, and may have been billed: up to {}",
            counted(spent.unknown_calls, "call"),
            spent.unknown_ceiling.short(),
        ));
    }
    lines
}

/// How the ledger says that a cap cannot be kept.
const NO_PRICE: &str = "has no price";

/// What a person can do about a run or a sheet that is held by a budget. `resume` is the command that lets it go on.
pub(crate) fn budget_way_out(message: &str, resume: &str) -> String {
    if message.contains(NO_PRICE) {
        return format!(
            "name the model's price in a file, and that file in llm.prices (docs/models.md), then {resume}; \
             or let its calls pass uncounted: {resume} --allow-unpriced"
        );
    }
    // The first word of a refusal is the name of what has the cap.
    let scope = message.split(' ').next().and_then(|word| word.split_once(':'));
    match scope.map(|(kind, _)| kind) {
        Some("day") => format!(
            "the cap of a day is the setting budget.day: raise it, or wait for the next day (UTC), then {resume}"
        ),
        Some("tag") => format!("the cap of a tag is the setting budget.tags: raise it, then {resume}"),
        _ => format!(
            "allow more: {resume} --max-cost USD; or bound answers with --max-tokens, since a call is booked at its longest"
        ),
    }
}

/// What a person can do about a run that is held.
pub(crate) fn way_out(held: Held, message: &str, id: &RunId) -> String {
    match held {
        Held::Budget => budget_way_out(message, &format!("longhaul runs resume {id}")),
        Held::Auth => format!(
            "set the key (longhaul keys ls shows where it is looked for), then repeat the command, or longhaul runs resume {id}"
        ),
        Held::Quota => {
            format!("when the account has room again, repeat the command, or longhaul runs resume {id}")
        }
        Held::Outage => format!("it goes on by itself; longhaul runs resume {id} tries at once"),
        Held::BatchLimit => format!(
            "send it again: longhaul runs resume {id}; or decide: longhaul runs resolve {id} --one-by-one (at the full price) or --drop"
        ),
        Held::Ambiguous => {
            format!("decide: longhaul runs resolve {id} --wait, --resubmit, --one-by-one or --drop")
        }
    }
}
