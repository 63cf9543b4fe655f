//! The end of a run: its answers in order, and what they cost.

use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use longhaul_pipeline::{Status, numbered};
use longhaul_prompts::{Estimate, Run};
use longhaul_queue::job::JobResult;
use longhaul_queue::limits::PAGE_MAX;
use longhaul_queue::{Engine, Queue};
use serde::{Deserialize, Serialize};

use crate::answers::{self, ErrorInfo, Item, Outcome};
use crate::app::App;
use crate::args::RunArgs;
use crate::commands::follow::code_of;
use crate::commands::runs::units_text;
use crate::commands::summary;
use crate::exit::{self, Code, Failure};
use crate::output::{Format, counted};
use crate::outputs;
use crate::pipelines::Place;
use crate::prompts::{Form, PromptFile};

/// Where answers go.
struct Answers<'a> {
    /// Those that have one; stdout by default.
    out: Option<&'a Path>,
    /// Those that failed; among the others by default.
    errors: Option<&'a Path>,
    /// The prompts, for columns that are carried on.
    prompts: Option<&'a PromptFile>,
    /// Also over files that are not this run's own.
    force: bool,
}

/// Where the answers of a run are read: from the store of this process, or through a server.
#[derive(Clone, Copy)]
pub(crate) struct Access<'a> {
    pub(crate) queue: &'a Queue,
    /// What remembers the files that were written; nothing through a server.
    pub(crate) engine: Option<&'a Engine>,
}

impl<'a> Access<'a> {
    /// To the store of this process.
    pub(crate) fn here(engine: &'a Engine) -> Self {
        Self { queue: engine.queue(), engine: Some(engine) }
    }
}

/// What was written.
#[derive(Debug, Clone, Default)]
struct Written {
    /// Requests without an answer.
    failed: u64,
    /// Answers that were cut off.
    cut_off: u64,
    /// Why the first of them has no answer.
    first_error: Option<String>,
}

/// What a program is told about a run.
#[derive(Serialize)]
struct RunView<'a> {
    #[serde(flatten)]
    status: &'a Status,
    /// After a sample: what all prompts will cost.
    #[serde(skip_serializing_if = "Option::is_none")]
    estimate: Option<&'a Estimate>,
}

/// Tells programs how far a run is; people are told on stderr.
pub(super) fn print_object(app: &App, status: &Status, estimate: Option<&Estimate>) -> Result<()> {
    app.out.one(&RunView { status, estimate }, String::new)
}

/// Writes the answers and says what they cost.
pub(super) async fn finish(
    app: &App,
    args: &RunArgs,
    access: Access<'_>,
    (run, prompts): (&Run, &PromptFile),
    (status, took): (&Status, Took),
) -> Result<Code> {
    let ended = status.standing.state.is_end();
    let answers = Answers {
        out: args.out.as_deref(),
        errors: args.errors.as_deref(),
        prompts: Some(prompts),
        force: args.force,
    };
    if ended {
        let written = write_answers(app, access, run, &answers).await?;
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
    print_summary(app, status, took);
    Ok(code_of(status))
}

/// Writes all answers of a run, in order.
async fn write_answers(app: &App, access: Access<'_>, run: &Run, answers: &Answers<'_>) -> Result<Written> {
    let written = try_write_answers(app, access, run, answers).await;
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

async fn try_write_answers(
    app: &App,
    Access { queue, engine }: Access<'_>,
    run: &Run,
    answers: &Answers<'_>,
) -> Result<Written> {
    let places = [("--out", answers.out), ("--errors", answers.errors)];
    if !answers.force {
        outputs::refuse_foreign(engine, run.id.as_str(), &places).await?;
    }
    let mut writer = answers::Answers::create(options(app, run, answers))?;
    let mut rows = answers.prompts.map(PromptFile::lines).transpose()?;
    let mut written = Written::default();
    let (mut after, mut next_row) = (0, 0);
    loop {
        let page = queue.results(&run.id.process(), after, PAGE_MAX).await?;
        for result in &page.items {
            let index = numbered::number(result.id);
            let (custom_id, outcome) = outcome_of(queue, result).await?;
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
                let payload: Asked = queue.get(result.id).await?.payload.to()?;
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
    outputs::remember(engine, run.id.as_str(), &places).await;
    if let Some(out) = answers.out {
        app.out.note(format_args!("answers are in {}", out.display()));
    }
    Ok(written)
}

/// How the command line names stdout.
const STDOUT: &str = "-";
/// How an answer says that it was cut off.
const CUT_OFF: &str = "length";

/// The form of answers. Who asks for JSON on stdout gets JSON lines there, whatever the prompts came from.
fn form_of(app: &App, out: &Path, input: Form, delimiter: Option<u8>) -> answers::Form {
    match app.out.format {
        Format::Json | Format::Jsonl if out == Path::new(STDOUT) => answers::Form::json(input),
        Format::Json | Format::Jsonl | Format::Text | Format::None => {
            answers::Form::choose(out, input, delimiter)
        }
    }
}

fn options(app: &App, run: &Run, answers: &Answers<'_>) -> answers::Options {
    let out = answers::place_of(app.out.format, answers.out);
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
async fn outcome_of(queue: &Queue, result: &JobResult) -> Result<(Option<String>, Outcome)> {
    if let Some(value) = &result.result {
        let name: Named = value.to()?;
        return Ok((name.custom_id, Outcome::Answer(value.to()?)));
    }
    let payload: Named = queue.get(result.id).await?.payload.to()?;
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
pub(super) struct Took {
    pub(super) time: Duration,
    /// For all of it; otherwise a part was done before.
    pub(super) all: bool,
}

/// What a run did and cost, on stderr.
fn print_summary(app: &App, status: &Status, took: Took) {
    let units = &status.standing.units;
    let Took { time, all } = took;
    let seconds = time.as_secs_f64();
    let rate = all.then(|| format!(", {:.0} a second", units.ended() as f64 / seconds.max(0.001)));
    let text = units_text(status);
    app.out.note(format_args!("{}: {text} · {seconds:.1} s{}", status.id, rate.unwrap_or_default()));
    for line in summary::spending(status) {
        app.out.note(line);
    }
    summary::tell_state(app, status);
}

/// `runs results`: the answers of a run, as they were asked for.
pub(crate) async fn write_results(
    app: &App,
    access: Access<'_>,
    run: longhaul_pipeline::Run,
    place: &Place<'_>,
) -> Result<Code> {
    let run = Run::read(run)?;
    let answers = Answers { out: place.out, errors: place.errors, prompts: None, force: place.force };
    let written = write_answers(app, access, &run, &answers).await?;
    tell_lost_columns(app, &run, place.out);
    if let Some(out) = place.out {
        let told = serde_json::json!({ "id": run.id.as_str(), "file": out, "failed": written.failed });
        app.out.one(&told, String::new)?;
    }
    Ok(if written.failed > 0 { Code::JobsFailed } else { Code::Ok })
}

/// A table's other columns are in its file, not in the store.
fn tell_lost_columns(app: &App, run: &Run, out: Option<&Path>) {
    let source = &run.settings.source;
    let form = Form::named(&source.form);
    let written = form_of(app, out.unwrap_or(Path::new(STDOUT)), form, None);
    if !(form.is_table() && written.is_table()) {
        return;
    }
    let name = &source.name;
    app.out.warn(format_args!("the columns of {name} are not stored, so they are not beside the answers"));
    app.out.hint(format_args!(
        "the command that began the run writes them too, with --out, and asks nothing again: longhaul run {name} …"
    ));
}
