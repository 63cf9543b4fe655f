//! The first pass over a file: what its prompts have in common, and every fault of it before anything is stored.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use anyhow::Result;
use longhaul_llm::Endpoint;

use super::detect::Shape;
use super::ids::Ids;
use super::source::Source;
use super::{Duplicates, Fault, Form, Problem, PromptLine, Summary, json, refused};
use crate::exit::{Code, Failure};

/// Faults that a refusal lists; the rest is counted.
const PROBLEMS_SHOWN_MAX: usize = 10;
/// Prompts of one run.
const PROMPTS_MAX: u64 = 10_000_000;
/// Field names that a summary lists.
const EXTRA_FIELDS_MAX: usize = 20;

/// What the first pass gathers.
#[derive(Debug)]
pub(super) struct Checker {
    shape: Shape,
    wanted: Endpoint,
    ids: Ids,
    prompts: u64,
    endpoint: Option<(Endpoint, u64)>,
    without_model: u64,
    extra_fields: BTreeSet<String>,
    duplicates: Option<Duplicates>,
}

impl Checker {
    pub(super) fn new(shape: Shape, wanted: Endpoint) -> Self {
        Self {
            shape,
            wanted,
            ids: Ids::default(),
            prompts: 0,
            endpoint: None,
            without_model: 0,
            extra_fields: BTreeSet::new(),
            duplicates: None,
        }
    }

    pub(super) fn take(&mut self, prompt: &PromptLine) -> Result<(), Fault> {
        self.prompts += 1;
        if self.prompts > PROMPTS_MAX {
            let text = format!("this is prompt {}, and a run takes at most {PROMPTS_MAX}", self.prompts);
            return Err(Problem::new(prompt.line, text, "split the file into several runs").last().into());
        }
        let (endpoint, first) = *self.endpoint.get_or_insert((prompt.endpoint, prompt.line));
        if endpoint != prompt.endpoint {
            let text = format!("`url` differs from that of line {first}");
            return Err(Problem::new(
                prompt.line,
                text,
                "put chat completions and embeddings into files of their own",
            )
            .into());
        }
        if self.wanted == Endpoint::Embeddings && prompt.endpoint != self.wanted {
            let text = "`url` asks for a chat, and --embed for embeddings";
            return Err(Problem::new(prompt.line, text, "omit --embed: the lines say what they are").into());
        }
        self.without_model += u64::from(prompt.body.get("model").is_none());
        for name in json::extra_fields(&prompt.body) {
            if self.extra_fields.len() < EXTRA_FIELDS_MAX && !self.extra_fields.contains(name) {
                self.extra_fields.insert(name.to_owned());
            }
        }
        self.take_id(prompt)
    }

    fn take_id(&mut self, prompt: &PromptLine) -> Result<(), Fault> {
        let Some(id) = &prompt.custom_id else { return Ok(()) };
        let Some(first) = self.ids.insert(id, prompt.line) else { return Ok(()) };
        if self.shape.form == Form::Openai {
            let text = format!("`custom_id` {id:?} stands on line {first} already");
            return Err(Problem::new(prompt.line, text, "give every line a custom_id of its own").into());
        }
        // Rows are known by their place, so an id that is not unique is only worth a remark.
        let lines = (first, prompt.line);
        let duplicates =
            self.duplicates.get_or_insert_with(|| Duplicates { count: 0, id: id.clone(), lines });
        duplicates.count += 1;
        Ok(())
    }

    pub(super) fn summary(self, source: &Source, bytes: u64, sha256: String) -> Result<Summary> {
        let Some((endpoint, _)) = self.endpoint else {
            let text = format!("{} has no prompts", source.name());
            return Err(Failure::new(Code::Usage, text)
                .hint("one prompt a line, or a table with a header and at least one row")
                .into());
        };
        Ok(Summary {
            form: self.shape.form,
            delimiter: self.shape.delimiter,
            prompts: self.prompts,
            endpoint,
            bytes,
            sha256,
            without_model: self.without_model,
            extra_fields: self.extra_fields,
            duplicates: self.duplicates,
        })
    }
}

/// The first faults, and how many there are.
#[derive(Debug, Default)]
pub(super) struct Problems {
    shown: Vec<Problem>,
    count: u64,
}

impl Problems {
    pub(super) fn push(&mut self, problem: Problem) {
        self.count += 1;
        if self.shown.len() < PROBLEMS_SHOWN_MAX {
            self.shown.push(problem);
        }
    }

    pub(super) fn refuse(&self, source: &Source) -> Result<()> {
        let Some(first) = self.shown.first() else { return Ok(()) };
        if self.count == 1 {
            return Err(refused(source, first).into());
        }
        let mut text = format!("{} has {} lines that cannot be used:", source.name(), self.count);
        for Problem { line, text: problem, .. } in &self.shown {
            // Writing to a String cannot fail.
            let _ = write!(text, "\n  line {line}: {problem}");
        }
        let more = self.count - self.shown.len() as u64;
        if more > 0 {
            let _ = write!(text, "\n  and {more} more");
        }
        Err(Failure::new(Code::Usage, text).hint(first.hint).into())
    }
}
