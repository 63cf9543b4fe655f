//! What a sheet is made of: a table that was uploaded or is at Google's, and what is asked of its texts. All of it is checked before
//! anything is stored.

use axum::http::StatusCode;
use longhaul_api::sheets::{CategoryIn, ExistingIn, GoogleIn, ModeIn, SheetIn};
use longhaul_llm::catalog::check_model;
use longhaul_llm::schema;
use longhaul_pipeline::RunId;
use longhaul_pipeline::uploads::FileRecord;
use longhaul_queue::limits::{TAGS_MAX, check_name};
use longhaul_sheets::google::{SheetAddress, SheetChoice};
use longhaul_sheets::settings::{
    CATEGORIES_MAX, Category, Existing, Format, GoogleSheet, Mode, ModelName, Source, Target,
};
use longhaul_sheets::tables::StoredSheet;
use longhaul_sheets::{Layout, SheetSettings, files};

use super::output::format_of;
use super::problems;
use crate::ctx::Ctx;
use crate::guard::Caller;
use crate::problem::Problem;

mod layout;

use layout::{layout_of, work_of};

/// Bytes of words of the user's own, and of one category: they go out with every request.
const INSTRUCTIONS_BYTES_MAX: usize = 100_000;
const CATEGORY_BYTES_MAX: usize = 20_000;

/// A sheet that can be made.
pub(super) struct Wanted {
    /// With the upload itself for a source.
    pub(super) settings: SheetSettings,
    /// The upload; `None` for a Google sheet.
    file: Option<FileRecord>,
}

impl Wanted {
    /// Checks all that can be checked without reading the table.
    pub(super) async fn new(ctx: &Ctx, caller: &Caller, asked: SheetIn) -> Result<Self, Problem> {
        let model = chosen(ctx, asked.profile.as_deref(), asked.model.as_deref().unwrap_or_default())?;
        let fallback = fallback(ctx, &asked)?;
        for name in std::iter::once(&model).chain(&fallback) {
            ctx.llm().route(&name.profile, &name.model).await?;
        }
        check_words(&asked)?;
        let mode = mode(&asked)?;
        let layout = asked.layout.as_ref().map_or_else(Layout::sheet, layout_of);
        check_layout(&layout, &mode, &asked)?;
        let work = work_of(&asked.work)?;
        let (source, file) = source(ctx, caller, &asked).await?;
        if matches!((&source, &layout), (Source::File { format: Format::Jsonl, .. }, Layout::Sheet { .. })) {
            let text =
                "JSONL has no rows of heads: name the field with the text by {\"columns\": {\"text\": …}}";
            return Err(unfit("layout", text));
        }
        let category = |CategoryIn { name, definition, detail }| Category { name, definition, detail };
        let settings = SheetSettings {
            target: if file.is_some() { Target::Kept } else { Target::InPlace },
            source,
            layout,
            mode,
            categories: asked.categories.into_iter().map(category).collect(),
            instructions: asked.instructions,
            range: asked.range.unwrap_or((0.0, 1.0)),
            max_tokens: asked.max_tokens,
            model,
            fallback,
            existing: match asked.existing {
                ExistingIn::Keep => Existing::Keep,
                ExistingIn::Overwrite => Existing::Overwrite,
            },
            limit: asked.limit,
            work,
            cache: asked.cache,
            tags: asked.tags,
            estimate_usd: None,
            estimate_max_usd: None,
            raw_estimate_usd: None,
        };
        let wanted = Self { settings, file };
        wanted.settings.check().map_err(|error| wanted.problem(error))?;
        Ok(wanted)
    }

    /// The name of the sheet.
    pub(super) fn id(&self) -> Result<RunId, Problem> {
        Ok(self.settings.run_id()?)
    }

    /// The settings with the table where it stays. That of a sheet that is there stays where it is; if it is ours and was lost, the upload
    /// takes its place, since it has the same bytes.
    pub(super) async fn kept(
        &self,
        ctx: &Ctx,
        known: Option<&StoredSheet>,
    ) -> Result<SheetSettings, Problem> {
        let mut settings = self.settings.clone();
        let (Some(file), Source::File { path, .. }) = (&self.file, &mut settings.source) else {
            return Ok(settings);
        };
        let id = self.id()?;
        let table = match known.map(|sheet| &sheet.settings.source) {
            Some(Source::File { path, .. }) if !ctx.uploads.has_table(id.as_str(), path) => {
                return Ok(settings);
            }
            Some(Source::File { path, .. }) => path.clone(),
            Some(Source::Google(_)) | None => {
                ctx.uploads.table(id.as_str(), &file.filename).map_err(Problem::unavailable)?
            }
        };
        ctx.uploads.keep_table(file, &table).await.map_err(Problem::unavailable)?;
        *path = table;
        Ok(settings)
    }

    /// What the pipeline refuses, in the words of the API.
    pub(super) fn problem(&self, error: longhaul_sheets::Error) -> Problem {
        let name = self.file.as_ref().map_or("the sheet", |file| file.filename.as_str());
        problems::of(error, &self.settings, name)
    }
}

async fn source(
    ctx: &Ctx,
    caller: &Caller,
    asked: &SheetIn,
) -> Result<(Source, Option<FileRecord>), Problem> {
    match (&asked.file_id, &asked.google) {
        (None, None) => {
            Err(unfit("file_id", "send the file_id of a table that was uploaded to /v1/files, or google"))
        }
        (Some(_), Some(_)) => Err(unfit("google", "file_id and google exclude each other")),
        (Some(file), None) => {
            let (source, record) = uploaded(ctx, caller, file, asked).await?;
            Ok((source, Some(record)))
        }
        (None, Some(google)) => {
            for (field, given) in [("format", asked.format.is_some()), ("sheet", asked.sheet.is_some())] {
                if given {
                    return Err(unfit(
                        field,
                        format!("{field} is of files; a Google sheet has google.sheet"),
                    ));
                }
            }
            Ok((Source::Google(at_google(google)?), None))
        }
    }
}

async fn uploaded(
    ctx: &Ctx,
    caller: &Caller,
    file: &str,
    asked: &SheetIn,
) -> Result<(Source, FileRecord), Problem> {
    let record = ctx.uploads.get(file, ctx.queue().clock().now());
    let Some(record) = record.filter(|record| caller.owns(record.owner.as_deref())) else {
        return Err(unfit("file_id", format!("there is no file {file:?}: upload it to /v1/files")));
    };
    let format = match asked.format {
        Some(format) => format_of(format),
        None => Format::of_path(record.filename.as_ref()).map_err(|_| {
            let name = &record.filename;
            unfit("format", format!("how is {name:?} written? its name does not end in .csv, .tsv, .jsonl or .xlsx, so send format"))
        })?,
    };
    if let Some(sheet) = &asked.sheet {
        if format != Format::Xlsx {
            return Err(unfit("sheet", "only a workbook has sheets"));
        }
        check_name("sheet", sheet).map_err(|error| unfit("sheet", error))?;
    }
    let path = std::path::absolute(ctx.uploads.content(&record)).map_err(Problem::unavailable)?;
    let hashed = path.clone();
    let sha256 =
        tokio::task::spawn_blocking(move || files::sha256(&hashed)).await.map_err(Problem::internal)?;
    // It was there a moment ago: the disk, or somebody deleted it meanwhile.
    let sha256 =
        sha256.map_err(|_| Problem::unavailable(format!("{file} cannot be read now")).at("file_id"))?;
    Ok((Source::File { path, format, sheet: asked.sheet.clone(), sha256 }, record))
}

fn at_google(google: &GoogleIn) -> Result<GoogleSheet, Problem> {
    let GoogleIn { spreadsheet, sheet } = google;
    let text = match SheetAddress::is_meant_by(spreadsheet) {
        true => spreadsheet.clone(),
        false => format!("sheets://{spreadsheet}"),
    };
    let address: SheetAddress =
        text.parse().map_err(|error: longhaul_sheets::Error| unfit("google.spreadsheet", error))?;
    if let SheetChoice::Title(_) = address.sheet {
        return Err(unfit("google.spreadsheet", "send the id alone, and the title as google.sheet"));
    }
    check_name("google.sheet", sheet).map_err(|error| unfit("google.sheet", error))?;
    Ok(GoogleSheet { spreadsheet: address.spreadsheet, sheet: sheet.clone() })
}

fn chosen(ctx: &Ctx, profile: Option<&str>, model: &str) -> Result<ModelName, Problem> {
    let chosen = ctx.catalog.choose(profile, model)?;
    Ok(ModelName { profile: chosen.profile, model: chosen.model })
}

fn fallback(ctx: &Ctx, asked: &SheetIn) -> Result<Option<ModelName>, Problem> {
    let of_fallback = |problem: Problem| {
        let field = problem.field.as_deref().map(|field| format!("fallback_{field}"));
        Problem { field, ..problem }
    };
    match (&asked.fallback_model, asked.fallback_profile.as_deref()) {
        (None, None) => Ok(None),
        (None, Some(_)) => {
            Err(unfit("fallback_model", "fallback_profile is of a fallback_model, which is missing"))
        }
        (Some(model), profile) => {
            check_model("fallback_model", model)?;
            chosen(ctx, profile, model).map(Some).map_err(of_fallback)
        }
    }
}

fn check_words(asked: &SheetIn) -> Result<(), Problem> {
    let bytes = asked.instructions.as_ref().map_or(0, String::len);
    if bytes > INSTRUCTIONS_BYTES_MAX {
        let text = format!("instructions has {bytes} bytes, at most {INSTRUCTIONS_BYTES_MAX} are possible");
        return Err(unfit("instructions", text));
    }
    if asked.categories.len() > CATEGORIES_MAX {
        let text = format!("{} categories, at most {CATEGORIES_MAX} are possible", asked.categories.len());
        return Err(unfit("categories", text));
    }
    for (index, category) in asked.categories.iter().enumerate() {
        let field = |name: &str| format!("categories[{index}].{name}");
        check_name("name", &category.name).map_err(|error| unfit(&field("name"), error))?;
        for (name, text) in [("definition", &category.definition), ("detail", &category.detail)] {
            if text.len() > CATEGORY_BYTES_MAX {
                let text =
                    format!("{name} has {} bytes, at most {CATEGORY_BYTES_MAX} are possible", text.len());
                return Err(unfit(&field(name), text));
            }
        }
    }
    // One tag is the pipeline's own.
    if asked.tags.len() >= TAGS_MAX {
        return Err(unfit(
            "tags",
            format!("{} tags, at most {} are possible", asked.tags.len(), TAGS_MAX - 1),
        ));
    }
    asked.tags.iter().try_for_each(|tag| check_name("tags", tag)).map_err(|error| unfit("tags", error))
}

fn mode(asked: &SheetIn) -> Result<Mode, Problem> {
    let Some(schema) = &asked.schema else {
        return Ok(match asked.mode {
            None | Some(ModeIn::Scores) => Mode::Scores,
            Some(ModeIn::Rationale) => Mode::Rationale,
        });
    };
    if asked.mode.is_some() {
        return Err(unfit("mode", "a schema is asked for instead of scores, so there is no mode"));
    }
    if !asked.categories.is_empty() {
        let text = "a schema is asked for instead of categories: say in instructions what its fields mean";
        return Err(unfit("categories", text));
    }
    schema::Compiled::new(schema).map_err(|error| unfit("schema", error.message))?;
    if schema["properties"].as_object().is_none_or(serde_json::Map::is_empty) {
        return Err(unfit("schema", "it must be of an object with properties: each becomes a column"));
    }
    Ok(Mode::Free { schema: schema.clone() })
}

fn check_layout(layout: &Layout, mode: &Mode, asked: &SheetIn) -> Result<(), Problem> {
    match layout {
        Layout::Columns { .. } if matches!(mode, Mode::Free { .. }) => Ok(()),
        Layout::Columns { .. } if asked.categories.is_empty() => {
            Err(unfit("categories", "there are no categories: send what the texts are judged by"))
        }
        Layout::Columns { .. } => Ok(()),
        Layout::Sheet { .. } if !asked.categories.is_empty() => {
            let text = "in this layout categories stand above their columns in the table; send {\"columns\": {\"text\": …}} as layout to name them here";
            Err(unfit("layout", text))
        }
        Layout::Sheet { .. } if *mode != Mode::Scores => {
            let text = "this layout has one column a category, for its score; for a rationale or a schema send {\"columns\": {\"text\": …}}";
            Err(unfit("layout", text))
        }
        Layout::Sheet { .. } => Ok(()),
    }
}

fn unfit(field: &str, text: impl std::fmt::Display) -> Problem {
    Problem::new(StatusCode::UNPROCESSABLE_ENTITY, "invalid", text).at(field)
}
