//! What a verification found: facts, checks, and the violations of those that failed.

use longhaul_stores::shown;
use serde::{Serialize, Serializer};

use crate::{Host, Scratch};

/// Violations that are told; the rest is a count.
const SHOWN_MAX: usize = 20;

/// A verification's outcome.
#[derive(Debug, Serialize)]
pub struct Report {
    /// Which verification.
    pub what: &'static str,
    /// Whether all checks hold.
    pub ok: bool,
    /// Numbers that people may want to know, by name.
    #[serde(serialize_with = "by_name")]
    pub facts: Vec<(&'static str, u64)>,
    /// What was checked.
    pub checks: Vec<Check>,
    /// What speaks against checks: the first ones.
    pub violations: Vec<String>,
    /// Where everything is kept when something is wrong.
    pub folder: Option<String>,
}

fn by_name<S: Serializer>(facts: &[(&'static str, u64)], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(facts.iter().map(|(name, number)| (name.replace(' ', "_"), number)))
}

/// Something that was checked.
#[derive(Debug, Serialize)]
pub struct Check {
    /// What must hold.
    pub check: &'static str,
    /// How often it did not.
    pub violations: usize,
}

impl Report {
    /// An empty report.
    pub(super) fn new(what: &'static str) -> Self {
        Self { what, ok: true, facts: Vec::new(), checks: Vec::new(), violations: Vec::new(), folder: None }
    }

    /// Adds a number that people may want to know.
    pub(super) fn fact(&mut self, name: &'static str, number: u64) {
        self.facts.push((name, number));
    }

    /// Adds a check with what speaks against it.
    pub(super) fn check(&mut self, check: &'static str, violations: Vec<String>) {
        self.checks.push(Check { check, violations: violations.len() });
        self.ok &= violations.is_empty();
        let room = SHOWN_MAX - self.violations.len();
        self.violations.extend(violations.into_iter().take(room).map(|text| format!("{check}: {text}")));
    }

    /// Removes what was made for it, or keeps all of it when something is wrong.
    pub(super) async fn finish(mut self, host: &Host, mut scratch: Scratch) -> Self {
        if self.ok {
            scratch.remove().await;
            return self;
        }
        self.folder = Some(scratch.keep().display().to_string());
        if let Some(url) = scratch.space_url() {
            host.note(format_args!("its jobs are kept in {}", shown(url)));
        }
        self
    }

    /// How often a check was broken.
    pub fn violation_count(&self) -> usize {
        self.checks.iter().map(|check| check.violations).sum()
    }
}
