//! From the command line to a sheet's settings.

use std::borrow::Cow;
use std::path::{Path, PathBuf};

use anyhow::Result;
use longhaul_llm::cache::CacheMode;
use longhaul_sheets::google::{Google, SheetAddress};
use longhaul_sheets::settings::{Category, Existing, Format, Mode, ModelName, Source, Target, Work};
use longhaul_sheets::{Layout, SheetSettings, files};
use serde::Deserialize;

use crate::args::{EstimateArgs, ScoreArgs, ScoringArgs};
use crate::exit::{Code, Failure};
use crate::outputs::Input;
use crate::texts::TextArg;
use crate::{models, texts};

const RUBRIC_HINT: &str =
    "such as [[category]] with name = \"delivery\" and definition = \"how it was shipped\"";

const SCHEMA_HINT: &str = "it must be the JSON Schema of an object with properties: each becomes a column";

/// A rubric as it is written.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Rubric {
    category: Vec<RubricCategory>,
    #[serde(default)]
    instructions: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RubricCategory {
    name: String,
    #[serde(default)]
    definition: String,
    #[serde(default)]
    detail: String,
}

/// What `score` and an estimate of it have in common: the table, and what is asked of it.
pub(super) struct Shape<'a> {
    pub(super) table: Cow<'a, str>,
    pub(super) sheet: Option<&'a String>,
    pub(super) scoring: &'a ScoringArgs,
    schema: Option<&'a Path>,
    pub(super) model: Option<&'a String>,
    pub(super) max_tokens: Option<u32>,
    pub(super) limit: Option<u64>,
}

impl<'a> From<&'a ScoreArgs> for Shape<'a> {
    fn from(args: &'a ScoreArgs) -> Self {
        Self {
            table: Cow::from(&args.table),
            sheet: args.sheet.as_ref(),
            scoring: &args.scoring,
            schema: args.schema.as_deref(),
            model: args.model.as_ref(),
            max_tokens: args.max_tokens,
            limit: args.sample.or(args.limit),
        }
    }
}

impl<'a> From<&'a EstimateArgs> for Shape<'a> {
    fn from(EstimateArgs { prompts, scoring, .. }: &'a EstimateArgs) -> Self {
        Self {
            table: prompts.file.to_string_lossy(),
            sheet: prompts.sheet.as_ref(),
            scoring,
            schema: prompts.schema.as_deref(),
            model: prompts.model.as_ref(),
            max_tokens: prompts.max_tokens,
            limit: prompts.limit,
        }
    }
}

impl Shape<'_> {
    /// The settings of a sheet of this shape whose scores are only kept.
    pub(super) async fn settings(
        &self,
        models: &models::Setup,
        profile: String,
        google: Option<&Google>,
    ) -> Result<SheetSettings> {
        let model = models.model(&profile, self.model.map(String::as_str), true)?;
        let (categories, instructions) = rubric(self.scoring)?;
        Ok(SheetSettings {
            source: source(self, google).await?,
            target: Target::Kept,
            layout: match (&self.scoring.text_column, self.scoring.layout) {
                (Some(text), None) => Layout::Columns { text: text.clone() },
                _ => Layout::sheet(),
            },
            mode: self.mode()?,
            categories,
            instructions,
            range: range(&self.scoring.range)?,
            max_tokens: self.max_tokens,
            model: ModelName { profile, model },
            fallback: None,
            existing: if self.scoring.overwrite { Existing::Overwrite } else { Existing::Keep },
            limit: self.limit,
            work: Work { block_categories: self.scoring.batch_size, ..Work::default() },
            cache: CacheMode::Auto,
            tags: Vec::new(),
            estimate_usd: None,
            estimate_max_usd: None,
            raw_estimate_usd: None,
        })
    }

    /// What is asked of each text.
    pub(super) fn mode(&self) -> Result<Mode> {
        Ok(match self.schema {
            Some(path) => Mode::Free { schema: texts::read_schema(path, SCHEMA_HINT)? },
            None if self.scoring.rationale => Mode::Rationale,
            None => Mode::Scores,
        })
    }
}

/// All settings of a sheet.
pub(super) async fn of(
    args: &ScoreArgs,
    models: &models::Setup,
    google: Option<&Google>,
) -> Result<SheetSettings> {
    let profile = models.chosen()?;
    let fallback = args.fallback_model.as_ref().map(|model| ModelName {
        profile: args.fallback_profile.clone().unwrap_or_else(|| profile.clone()),
        model: model.clone(),
    });
    let shape = Shape::from(args).settings(models, profile, google).await?;
    Ok(SheetSettings {
        target: target(args, &shape.source)?,
        fallback,
        work: Work {
            chunk_rows: args.chunk_rows,
            parallel_chunks: args.parallel_chunks,
            concurrency: args.concurrency,
            unit_retries: args.unit_retries,
            chunk_retries: args.chunk_retries,
            fill_rounds: args.fill_rounds,
            failed_share_max: args.failed_share,
            ..shape.work
        },
        cache: args.cache.into(),
        tags: args.tags.clone(),
        ..shape
    })
}

/// What texts are judged by, and the user's own instructions.
pub(super) fn rubric(args: &ScoringArgs) -> Result<(Vec<Category>, Option<String>)> {
    let given = args.instructions.as_ref().map(|text| text.read("--instructions")).transpose()?;
    let Some(path) = &args.rubric else { return Ok((Vec::new(), given)) };
    let Rubric { category: categories, instructions } = read_rubric(path)?;
    Ok((categories.into_iter().map(category).collect(), given.or(instructions)))
}

/// The files that a sheet is made of.
pub(super) fn inputs(args: &ScoreArgs) -> Vec<Input> {
    let table = (!SheetAddress::is_meant_by(&args.table)).then_some(Path::new(&args.table));
    let options = [args.scoring.rubric.as_deref(), args.schema.as_deref()];
    let text = args.scoring.instructions.as_ref().and_then(TextArg::file);
    table.into_iter().chain(options.into_iter().flatten()).chain(text).filter_map(Input::of).collect()
}

fn category(category: RubricCategory) -> Category {
    let RubricCategory { name, definition, detail } = category;
    Category { name, definition, detail }
}

async fn source(Shape { table, sheet, .. }: &Shape<'_>, google: Option<&Google>) -> Result<Source> {
    if SheetAddress::is_meant_by(table) {
        let address: SheetAddress = table.parse()?;
        let Some(google) = google else {
            return Err(Failure::new(Code::Config, "no key for Google Sheets is set")
                .hint("make a service account, share the sheet with its address, and name its key file: --google-key FILE, or google.key_file in longhaul.toml")
                .into());
        };
        return Ok(Source::Google(google.find(&address).await?.sheet));
    }
    let path = PathBuf::from(&**table);
    let format = Format::of_path(&path)?;
    std::fs::metadata(&path).map_err(|error| {
        texts::unreadable(table, &error)
            .hint("name a table: .csv, .tsv, .jsonl, .xlsx, or a Google sheet as sheets://ID/TITLE")
    })?;
    let absolute = std::path::absolute(&path)?;
    let sha256 = {
        let path = absolute.clone();
        tokio::task::spawn_blocking(move || files::sha256(&path)).await??
    };
    Ok(Source::File { path: absolute, format, sheet: sheet.cloned(), sha256 })
}

fn target(args: &ScoreArgs, source: &Source) -> Result<Target> {
    if args.sample.is_some() {
        return Ok(Target::Kept);
    }
    match (source, &args.out) {
        (Source::Google(_), None) => Ok(Target::InPlace),
        (Source::Google(_), Some(_)) => Err(in_place_only()),
        (Source::File { .. }, Some(out)) => {
            Ok(Target::File { path: std::path::absolute(out)?, format: Format::of_path(out)? })
        }
        (Source::File { path, format, .. }, None) if args.in_place => {
            Ok(Target::File { path: path.clone(), format: *format })
        }
        (Source::File { .. }, None) if args.dry_run => Ok(Target::Kept),
        (Source::File { .. }, None) => Err(no_target()),
    }
}

/// That a Google sheet has no other place for its scores.
pub(super) fn in_place_only() -> anyhow::Error {
    Failure::new(Code::Usage, "--out: a Google sheet is written in place").hint("omit --out").into()
}

/// That nobody said where scores go.
pub(super) fn no_target() -> anyhow::Error {
    Failure::new(Code::Usage, "where should the scores go?")
        .hint("name a file with --out, overwrite the table with --in-place, or look first with --sample 20")
        .into()
}

pub(super) fn range(text: &str) -> Result<(f64, f64)> {
    let parts = text.split_once("..").and_then(|(low, high)| Some((low.parse().ok()?, high.parse().ok()?)));
    Ok(parts.ok_or_else(|| {
        Failure::new(Code::Usage, format!("--range: {text:?} is no range")).hint("such as 0..1 or -1..1")
    })?)
}

fn read_rubric(path: &Path) -> Result<Rubric> {
    let text = texts::read("--rubric", path, &format!("write the categories to it, {RUBRIC_HINT}"))?;
    let rubric: Rubric = toml::from_str(&text).map_err(|error| {
        Failure::new(Code::Usage, format!("--rubric {} cannot be used: {error}", path.display()))
            .hint(RUBRIC_HINT)
    })?;
    if rubric.category.is_empty() {
        return Err(Failure::new(Code::Usage, format!("--rubric {} has no category", path.display()))
            .hint(RUBRIC_HINT)
            .into());
    }
    Ok(rubric)
}
