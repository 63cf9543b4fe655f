//! From the command line to a run's settings.

use anyhow::Result;
use longhaul_llm::types::Dialect;
use longhaul_llm::{Endpoint, NanoUsd, Route};
use longhaul_prompts::plan::Strategy;
use longhaul_prompts::{Defaults, Draft, Estimate, Prompts, Run, RunSettings, Source, Submission};
use longhaul_queue::Timestamp;
use serde_json::Value;
use sha2::{Digest as _, Sha256};

use crate::app::App;
use crate::args::{PromptArgs, RunArgs};
use crate::exit::{Code, Failure};
use crate::output::counted;
use crate::outputs;
use crate::prompts::{Options, Pick, PromptFile, Summary, Template};
use crate::texts::{self, TextArg};
use crate::{models, parse};

use super::{Input, estimate};

const SCHEMA_HINT: &str =
    "it must be a JSON Schema, such as {\"type\":\"object\",\"required\":[\"label\"],…}";

/// Opens the file of prompts.
pub(super) fn prompts(args: &PromptArgs, line_bytes_max: usize) -> Result<PromptFile> {
    let text = args.template.as_ref().map(|text| text.read("--template")).transpose()?;
    let template: Option<Template> = text.as_deref().map(str::parse).transpose().map_err(|problem| {
        Failure::new(Code::Usage, format!("--template: {problem}"))
            .hint("such as 'Translate {{text}} to {{language}}'")
    })?;
    let endpoint = if args.embed { Endpoint::Embeddings } else { Endpoint::Chat };
    let (format, sheet) = (args.format, args.sheet.clone());
    PromptFile::open(&args.file, Options { format, template, endpoint, sheet, line_bytes_max })
}

/// The files that a run reads.
pub(super) fn inputs(args: &PromptArgs) -> Vec<outputs::Input> {
    let texts = [&args.template, &args.system].into_iter().flatten().filter_map(TextArg::file);
    let files = [args.file.as_path()].into_iter().chain(args.schema.as_deref()).chain(texts);
    files.filter_map(outputs::Input::of).collect()
}

/// What shapes the answers.
pub(super) fn shape(
    args: &PromptArgs,
    models: &models::Setup,
    profile: String,
    (prompts, summary, pick): (&PromptFile, &Summary, Pick),
) -> Result<Draft> {
    Ok(Draft {
        model: models.model(&profile, args.model.as_deref(), summary.without_model > 0)?,
        profile,
        endpoint: summary.endpoint,
        defaults: Defaults {
            system: system(args)?,
            max_tokens: args.max_tokens,
            temperature: args.temperature,
            dimensions: args.dimensions,
        },
        schema: schema(args)?,
        source: Source {
            name: name_of(args),
            sha256: digest(prompts, summary, pick),
            content: digest(prompts, summary, Pick::default()),
            requests: pick.count(),
            form: summary.form.as_str().to_owned(),
        },
        ..Draft::default()
    })
}

/// What a run is called: its file.
pub(super) fn name_of(args: &PromptArgs) -> String {
    args.file.file_name().map_or_else(|| "stdin".to_owned(), |name| name.to_string_lossy().into_owned())
}

/// Instructions for prompts without their own.
pub(super) fn system(args: &PromptArgs) -> Result<Option<String>> {
    args.system.as_ref().map(|text| text.read("--system")).transpose()
}

/// What answers must fit.
pub(super) fn schema(args: &PromptArgs) -> Result<Option<Value>> {
    args.schema.as_deref().map(|path| texts::read_schema(path, SCHEMA_HINT)).transpose()
}

/// When a run is to be done.
pub(super) fn deadline(app: &App, args: &RunArgs) -> Result<Option<Timestamp>> {
    let by = args.by.as_deref().map(|text| parse::time(text, app.now())).transpose();
    Ok(by.map_err(|problem| Failure::new(Code::Usage, format!("--by: {problem}")))?)
}

/// All settings of a run, with the estimate of one that is not there yet or only asked about.
pub(super) async fn of(
    app: &App,
    args: &RunArgs,
    models: &models::Setup,
    pipeline: &Prompts,
    Input { prompts, summary, pick }: &Input,
) -> Result<(RunSettings, Option<Estimate>)> {
    let now = app.now();
    let by = deadline(app, args)?;
    let draft = Draft {
        fallback_model: args.fallback_model.clone(),
        strategy: match (args.sync, args.batch, by) {
            (true, _, _) => Strategy::Sync,
            (_, true, _) => Strategy::Batch,
            (_, _, Some(_)) => Strategy::Auto,
            _ => app.settings.read("llm.bulk_strategy", parse::strategy)?,
        },
        by,
        cache: args.cache.into(),
        tags: args.tags.clone(),
        ..shape(&args.prompts, models, models.chosen()?, (prompts, summary, *pick))?
    };
    let route = pipeline.llm().route(&draft.profile, &draft.model).await?;
    note_left_out(app, summary, &route);
    let mut settings = draft.settings(&route, now).map_err(longhaul_llm::Error::from)?;
    // A run that is there already has its estimate, and reading a million prompts for another takes a while.
    if !args.dry_run && Run::find(pipeline.queue(), &settings.run_id()).await?.is_some() {
        return Ok((settings, None));
    }
    let estimate = estimate::of(prompts, Some(pipeline.queue()), pipeline.llm(), (&settings, &route)).await?;
    settings.expected = Some(estimate.expected(settings.mode));
    Ok((settings, Some(estimate)))
}

/// Names fields of prompts that the provider's dialect has no words for.
fn note_left_out(app: &App, summary: &Summary, route: &Route) {
    let Some(dialect) = Dialect::named(route.caps().dialect) else { return };
    let names = summary.extra_fields.iter().map(String::as_str);
    let left: Vec<&str> = names.filter(|name| !dialect.takes(name)).collect();
    if !left.is_empty() && summary.endpoint == Endpoint::Chat {
        app.out.note(format_args!(
            "not sent, since {} has no such field: {}",
            dialect.as_str(),
            left.join(", ")
        ));
    }
}

/// The content and how it is read: another template or sheet is another run.
pub(super) fn digest(prompts: &PromptFile, summary: &Summary, pick: Pick) -> String {
    let how = (
        &summary.sha256,
        prompts.template().map(Template::as_str),
        summary.form,
        pick.limit,
        prompts.sheet(),
    );
    let mut text = serde_json::to_string(&how).unwrap_or_default();
    if let Some(sample) = pick.sample {
        text += &format!("sample {sample}");
    }
    Sha256::digest(text).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Says what would be done; programs are told what it would cost, as the API tells it.
pub(super) fn describe(
    app: &App,
    (settings, estimate): (&RunSettings, Option<&Estimate>),
    max_cost: Option<NanoUsd>,
    simulated: bool,
) -> Result<Code> {
    let simulated = if simulated { " (simulated)" } else { "" };
    let id = settings.run_id();
    let cost = cost_text(settings);
    app.out.one(&estimate, || {
        let mut text = format!(
            "{id}: {} to {}{simulated} by profile {}, {}, {cost}",
            counted(settings.source.requests, "request"),
            shown_model(&settings.model),
            settings.profile,
            settings.mode,
        );
        if let Some(note) = &settings.mode_note {
            text += &format!("\n{note}");
        }
        if let Some(max) = max_cost {
            text += &format!("\nstops before {max}");
        }
        text
    })?;
    app.out.note("nothing was sent or stored");
    Ok(Code::Ok)
}

/// A model for people; a run has none of its own where each prompt names its model.
pub(crate) fn shown_model(model: &str) -> &str {
    if model.is_empty() { "the model of each line" } else { model }
}

/// What it is expected to cost.
fn cost_text(settings: &RunSettings) -> String {
    match settings.expected.and_then(|expected| expected.cost()) {
        None if settings.model.is_empty() => "not estimated: each line names its model".to_owned(),
        None => "unpriced: no price is known for this model".to_owned(),
        Some(cost) => estimate::about(cost),
    }
}

/// What one wants to know before the first request is sent.
pub(super) fn introduce(app: &App, submission: &Submission, max_cost: Option<NanoUsd>, simulated: bool) {
    let settings = submission.settings();
    let simulated = if simulated { " (simulated)" } else { "" };
    let verb = if submission.is_resumed() { "going on with" } else { "starting" };
    app.out.note(format_args!(
        "{verb} {}: {} to {}{simulated} by profile {}, {}",
        submission.id(),
        counted(settings.source.requests, "request"),
        shown_model(&settings.model),
        settings.profile,
        settings.mode,
    ));
    if let Some(note) = &settings.mode_note {
        app.out.warn(note);
    }
    let estimate = cost_text(settings);
    let limit = max_cost.map_or_else(String::new, |max| format!(", stops before {max}"));
    app.out.note(format_args!("cost {estimate}{limit}"));
}
