//! `config show`, `init`, `completions` and `man`.

use std::fs::OpenOptions;
use std::io::Write as _;

use anyhow::{Context as _, Result};
use clap_complete::Shell;
use serde::Serialize;

use crate::app::App;
use crate::config::{KEYS, Origin, list, profile_field_about, template};
use crate::exit::{Code, Failure};
use crate::output::{Cell, Output, Table, write_stdout};
use crate::pipelines::{added, own_names};
use crate::store;

const FILE: &str = "longhaul.toml";

/// `config show`.
pub(crate) fn show(app: &App) -> Result<Code> {
    let lines = lines(app);
    app.out.list(&lines, None, || {
        let mut table = Table::new(&["SETTING", "VALUE", "FROM", "MEANING"]);
        for line in &lines {
            let cells = [&line.key, &line.value, &line.origin.to_string(), line.about].map(Cell::new);
            table.row(cells.to_vec());
        }
        table
    })?;
    Ok(Code::Ok)
}

/// A setting as it is shown.
#[derive(Debug, Serialize)]
struct Line {
    key: String,
    value: String,
    origin: Origin,
    #[serde(skip)]
    about: &'static str,
}

/// Every setting, then every field of every profile.
fn lines(app: &App) -> Vec<Line> {
    let about = |name: &str| KEYS.iter().find(|key| key.name == name).map_or("", |key| key.about);
    let mut lines: Vec<Line> = app
        .settings
        .all()
        .iter()
        .map(|setting| Line {
            key: setting.key.to_owned(),
            value: store::shown(&setting.value),
            origin: setting.origin.clone(),
            about: about(setting.key),
        })
        .collect();
    for (name, fields) in app.settings.profiles() {
        for (field, (value, origin)) in fields {
            lines.push(Line {
                key: format!("profiles.{name}.{field}"),
                value: shown(field, value),
                origin: origin.clone(),
                about: profile_field_about(field),
            });
        }
    }
    lines
}

/// A field without what may be secret in it: values of headers, and a proxy's password.
fn shown(field: &str, value: &str) -> String {
    match field {
        "headers" => list(value)
            .iter()
            .map(|header| format!("{}: …", header.split(':').next().unwrap_or_default().trim()))
            .collect::<Vec<_>>()
            .join(","),
        "proxy" => match value.rsplit_once('@') {
            Some((_, host)) => format!("…@{host}"),
            None => value.to_owned(),
        },
        _ => value.to_owned(),
    }
}

/// `init`. Needs no settings, so that it can help where they are broken.
pub(crate) fn init(out: &Output) -> Result<Code> {
    let created = OpenOptions::new().write(true).create_new(true).open(FILE);
    let mut file = created.map_err(|error| {
        if error.kind() == std::io::ErrorKind::AlreadyExists {
            return anyhow::Error::new(
                Failure::new(Code::Failure, format!("{FILE} exists and was left as it is"))
                    .hint("see what is in force: longhaul config show"),
            );
        }
        anyhow::Error::new(error).context(format!("writing {FILE}"))
    })?;
    file.write_all(template().as_bytes()).with_context(|| format!("writing {FILE}"))?;
    out.one(&serde_json::json!({ "file": FILE }), || FILE.to_owned())?;
    out.note("every setting is in it, commented out, with its default");
    Ok(Code::Ok)
}

/// `completions SHELL`.
pub(crate) fn completions(shell: Shell) -> Result<Code> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut added().grammar(), "longhaul", &mut script);
    write_stdout(&String::from_utf8(script).context("the completion script is not text")?)?;
    Ok(Code::Ok)
}

/// `man`: the page of a command, also by the name that another page gives it: `longhaul-jobs-ls`.
pub(crate) fn man(command: &[String]) -> Result<Code> {
    let mut found = added().grammar();
    found.build();
    let given = command.join("-");
    let mut rest = given.trim_end_matches("(1)");
    rest = rest.strip_prefix(found.get_name()).map_or(rest, |rest| rest.trim_start_matches('-'));
    while !rest.is_empty() {
        // Names of commands may have a hyphen too, so the longest that fits is the one.
        let fits = |part: &clap::Command| {
            let after = rest.strip_prefix(part.get_name())?;
            let after = if after.is_empty() { after } else { after.strip_prefix('-')? };
            Some((after, part.clone()))
        };
        let next = found.get_subcommands().filter_map(fits).min_by_key(|(after, _)| after.len());
        let Some((after, part)) = next else {
            return Err(Failure::new(Code::NothingMatched, format!("there is no manual page {given}"))
                .hint("list all pages: longhaul man")
                .into());
        };
        (rest, found) = (after, part);
    }
    let mut page = Vec::new();
    clap_mangen::Man::new(found).render(&mut page).context("writing the manual page")?;
    write_stdout(&String::from_utf8(page).context("the manual page is not text")?)?;
    Ok(Code::Ok)
}

/// `openapi`.
pub(crate) fn openapi() -> Result<Code> {
    write_stdout(&longhaul_server::openapi(&own_names()))?;
    Ok(Code::Ok)
}
