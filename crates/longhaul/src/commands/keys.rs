//! `keys …`: where keys come from. They are never shown.

use std::io::{IsTerminal as _, Read as _, stdin};

use anyhow::{Context as _, Result};
use serde::Serialize;
use serde_json::json;

use crate::app::App;
use crate::args::KeysCommand;
use crate::config::environment;
use crate::exit::{Code, Failure};
use crate::keys::Keys;
use crate::models::unknown_profile;
use crate::output::{Cell, Table};

/// Longest input for a key.
const INPUT_BYTES_MAX: u64 = 16_384;

/// Where a profile's key comes from.
#[derive(Debug, Serialize)]
struct Line {
    profile: String,
    provider: String,
    key: &'static str,
    from: String,
}

/// Runs the command.
pub(crate) fn run(app: &App, command: &KeysCommand) -> Result<Code> {
    let keys = Keys::open();
    match command {
        KeysCommand::Ls => ls(app, &keys),
        KeysCommand::Set { profile } => {
            known(app, profile)?;
            if stdin().is_terminal() {
                app.out.note(format_args!("paste the key for {profile}, then Enter and Ctrl-D"));
            }
            let mut text = String::new();
            stdin().lock().take(INPUT_BYTES_MAX).read_to_string(&mut text).context("reading the key")?;
            let path = keys.set(profile, &text)?;
            app.out.note(format_args!("stored in {}, readable by you alone", path.display()));
            app.out.one(&json!({ "profile": profile, "file": path }), String::new)?;
            Ok(Code::Ok)
        }
        KeysCommand::Rm { profile } => {
            if !keys.remove(profile)? {
                return Err(
                    Failure::new(Code::NothingMatched, format!("no key is stored for {profile}")).into()
                );
            }
            app.out.note(format_args!("the key for {profile} is removed"));
            app.out.one(&json!({ "removed": profile }), String::new)?;
            Ok(Code::Ok)
        }
    }
}

fn known(app: &App, profile: &str) -> Result<()> {
    if app.settings.profiles().contains_key(profile) {
        return Ok(());
    }
    Err(unknown_profile(profile, app.settings.profiles().keys()).into())
}

fn ls(app: &App, keys: &Keys) -> Result<Code> {
    let mut lines = Vec::new();
    for (name, fields) in app.settings.profiles() {
        let get = |field: &str| fields.get(field).map(|(value, _)| value.clone());
        let from_env = get("key_env").filter(|variable| environment(variable).is_some());
        let stored = keys.path(name).filter(|path| path.is_file());
        let (key, from) = match (from_env, get("key_file"), stored) {
            (Some(variable), _, _) => ("set", variable),
            (None, Some(path), _) => ("file", path),
            (None, None, Some(path)) => ("stored", path.display().to_string()),
            (None, None, None) => {
                ("none", get("key_env").map_or_else(String::new, |name| format!("{name} is not set")))
            }
        };
        lines.push(Line { profile: name.clone(), provider: get("provider").unwrap_or_default(), key, from });
    }
    app.out.list(&lines, None, || {
        let mut table = Table::new(&["PROFILE", "PROVIDER", "KEY", "FROM"]);
        for line in &lines {
            table.row(vec![
                Cell::new(&line.profile),
                Cell::new(&line.provider),
                Cell::new(line.key),
                Cell::new(&line.from),
            ]);
        }
        table
    })?;
    Ok(Code::Ok)
}
