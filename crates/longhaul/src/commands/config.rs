//! `config show`, `init`, `completions` and `man`.

use std::fs::OpenOptions;
use std::io::Write as _;

use anyhow::{Context as _, Result};
use clap::CommandFactory as _;
use clap_complete::Shell;

use crate::app::App;
use crate::args::Cli;
use crate::config::{KEYS, template};
use crate::exit::{Code, Failure};
use crate::output::{Cell, Table, write_stderr, write_stdout};

const FILE: &str = "longhaul.toml";

/// `config show`.
pub(crate) fn show(app: &App) -> Result<Code> {
    let settings = app.settings.all();
    app.out.list(settings, None, || {
        let mut table = Table::new(&["SETTING", "VALUE", "FROM", "MEANING"]);
        for setting in settings {
            let about = KEYS.iter().find(|key| key.name == setting.key).map_or("", |key| key.about);
            let cells = [setting.key, &setting.value, &setting.origin.to_string(), about].map(Cell::new);
            table.row(cells.to_vec());
        }
        table
    })?;
    Ok(Code::Ok)
}

/// `init`. Needs no settings, so that it can help where they are broken.
pub(crate) fn init() -> Result<Code> {
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
    write_stdout(&format!("{FILE}\n"))?;
    write_stderr("every setting is in it, commented out, with its default\n");
    Ok(Code::Ok)
}

/// `completions SHELL`.
pub(crate) fn completions(shell: Shell) -> Result<Code> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "longhaul", &mut script);
    write_stdout(&String::from_utf8(script).context("the completion script is not text")?)?;
    Ok(Code::Ok)
}

/// `man`.
pub(crate) fn man() -> Result<Code> {
    let mut page = Vec::new();
    clap_mangen::Man::new(Cli::command()).render(&mut page).context("writing the manual page")?;
    write_stdout(&String::from_utf8(page).context("the manual page is not text")?)?;
    Ok(Code::Ok)
}
