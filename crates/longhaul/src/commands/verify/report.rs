//! What a verification found: facts, checks, and the violations of those that failed.

use anyhow::Result;
use serde::Serialize;

use crate::app::App;
use crate::commands::fleet::Stage;
use crate::exit::Code;
use crate::output::{Cell, Table};

/// Violations that are told; the rest is a count.
const SHOWN_MAX: usize = 20;

/// A verification's outcome.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    what: &'static str,
    ok: bool,
    facts: serde_json::Map<String, serde_json::Value>,
    checks: Vec<Check>,
    /// The first ones.
    violations: Vec<String>,
    /// Where everything is kept when something is wrong.
    folder: Option<String>,
    #[serde(skip)]
    told: Vec<(&'static str, u64)>,
}

#[derive(Debug, Serialize)]
struct Check {
    check: &'static str,
    violations: usize,
}

impl Report {
    /// An empty report.
    pub(super) fn new(what: &'static str) -> Self {
        Self {
            what,
            ok: true,
            facts: serde_json::Map::new(),
            checks: Vec::new(),
            violations: Vec::new(),
            folder: None,
            told: Vec::new(),
        }
    }

    /// Adds a number that people may want to know.
    pub(super) fn fact(&mut self, name: &'static str, number: u64) {
        self.facts.insert(name.replace(' ', "_"), number.into());
        self.told.push((name, number));
    }

    /// Adds a check with what speaks against it.
    pub(super) fn check(&mut self, check: &'static str, violations: Vec<String>) {
        self.checks.push(Check { check, violations: violations.len() });
        self.ok &= violations.is_empty();
        let room = SHOWN_MAX - self.violations.len();
        self.violations.extend(violations.into_iter().take(room).map(|text| format!("{check}: {text}")));
    }

    /// Prints it. When something is wrong the folder is kept and the exit code says so.
    pub(super) fn finish(mut self, app: &App, stage: &mut Stage) -> Result<Code> {
        if !self.ok {
            self.folder = Some(stage.keep().display().to_string());
        }
        app.out.one(&self, || self.text())?;
        if self.ok {
            return Ok(Code::Ok);
        }
        let all: usize = self.checks.iter().map(|check| check.violations).sum();
        app.out.error(format_args!(
            "{all} violations; store, journal and logs are kept in {}",
            self.folder.unwrap_or_default()
        ));
        Ok(Code::Failure)
    }

    fn text(&self) -> String {
        let mut facts = Table::new(&["FACT", "COUNT"]);
        for (name, number) in &self.told {
            facts.row(vec![Cell::new(name), Cell::number(*number)]);
        }
        let mut checks = Table::new(&["CHECK", "RESULT"]);
        for Check { check, violations } in &self.checks {
            let result = if *violations == 0 { "ok".to_owned() } else { format!("{violations} violations") };
            checks.row(vec![Cell::new(check), Cell::new(result)]);
        }
        let mut text = format!("{}\n{}", facts.render(false), checks.render(false));
        if !self.violations.is_empty() {
            text += "\nVIOLATIONS\n";
        }
        for violation in &self.violations {
            text += &format!("{}\n", crate::output::plain(violation));
        }
        text
    }
}
