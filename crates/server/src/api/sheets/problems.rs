//! What the pipeline refuses, told by the field of the request that it is about, in the words of the API: the pipeline speaks of options of the
//! command line, and of places of this machine.

use std::path::Path;

use axum::http::StatusCode;
use longhaul_sheets::settings::{SheetSettings, Source};

use crate::problem::Problem;

/// How the pipeline's refusals begin, and the fields that they are about. The empty one is that of the source.
const STARTS: [(&str, &str); 16] = [
    ("chunk_rows ", "work.chunk_rows"),
    ("parallel_chunks ", "work.parallel_chunks"),
    ("concurrency ", "work.concurrency"),
    ("block_categories ", "work.block_categories"),
    ("failed_share_max ", "work.failed_share_max"),
    ("range ", "range"),
    ("limit ", "limit"),
    ("the schema ", "schema"),
    ("there is no column ", "layout.columns.text"),
    ("rows and columns of a layout ", "layout.sheet"),
    ("there are no categories", "layout.sheet"),
    ("the category ", "categories"),
    ("category ", "categories"),
    ("no row has a text", ""),
    ("the table is empty", ""),
    ("row ", ""),
];

/// The problem of a refusal.
pub(super) fn of(error: longhaul_sheets::Error, settings: &SheetSettings, file_name: &str) -> Problem {
    let (source, path) = match &settings.source {
        Source::File { path, .. } => ("file_id", Some(path.as_path())),
        Source::Google(_) => ("google", None),
    };
    match error {
        longhaul_sheets::Error::Invalid(text) if text.starts_with("no key for Google Sheets") => {
            let text = "this server has no key for Google Sheets: set google.key_file in its longhaul.toml to the key of a service account, and share the sheet with that account";
            unfit("no_google_key", text).at("google")
        }
        longhaul_sheets::Error::Invalid(text) => {
            let field = STARTS.iter().find(|(start, _)| text.starts_with(start)).map(|(_, field)| *field);
            // The only one of these that names options.
            let text = match text.split_once(": name them in --rubric") {
                Some((text, _)) => {
                    format!("{text}: they stand above their columns, by default from D in rows 2 to 4")
                }
                None => without_path(&text, path, file_name),
            };
            let problem = unfit("invalid", text);
            match field {
                Some("") => problem.at(source),
                // A Google sheet and a file of heads have their categories in themselves.
                Some("categories") if settings.categories.is_empty() => problem.at(source),
                Some(field) => problem.at(field),
                None => problem,
            }
        }
        longhaul_sheets::Error::Table(text) => {
            unfit("unusable_table", without_path(&text, path, file_name)).at(source)
        }
        longhaul_sheets::Error::Sink(error) => Problem::from(longhaul_sheets::Error::Sink(error)).at(source),
        error => error.into(),
    }
}

/// A text that calls a file by its name, not by its place.
pub(super) fn without_path(text: &str, path: Option<&Path>, file_name: &str) -> String {
    match path.map(|path| path.display().to_string()) {
        Some(path) => text.replace(&path, file_name),
        None => text.to_owned(),
    }
}

fn unfit(code: &'static str, text: impl std::fmt::Display) -> Problem {
    Problem::new(StatusCode::UNPROCESSABLE_ENTITY, code, text)
}
