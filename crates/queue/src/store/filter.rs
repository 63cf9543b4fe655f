//! Which jobs a call is about, and how a store finds out whether a job is one of them. The judgement is the same code
//! for all stores; they differ in how few jobs they must judge.

use std::fmt::Display;

use super::field::{Field, Finder};
use crate::error::{Error, Result};
use crate::job::{JobId, ProcessId};
use crate::redact;
use crate::state::State;

/// Digits from which on a text may be meant as the start of an id; with fewer, half of all ids would be meant.
const ID_DIGITS_MIN: usize = 4;
/// Hexadecimal digits of an id.
const ID_DIGITS: usize = 32;

/// Which jobs to list, cancel, retry or delete. All given conditions must hold. [`Filter::parse`] reads one from a search
/// text.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Filter {
    /// Any of these; empty means all.
    pub states: Vec<State>,
    /// The queue.
    pub queue: Option<String>,
    /// The kind.
    pub kind: Option<String>,
    /// The process.
    pub process_id: Option<ProcessId>,
    /// A tag it carries.
    pub tag: Option<String>,
    /// The start of its id, in either case, with or without dashes. What cannot be one matches nothing.
    pub id_prefix: Option<String>,
    /// Texts, each of which stands in the payload, title or error, or is the start of the id (four digits or more).
    pub search: Vec<String>,
    /// Fields of its payload.
    pub fields: Vec<Field>,
    /// Look at texts and fields as they are shown to one who may not see secrets ([`crate::redact`]): what is hidden is not found.
    pub hide_secrets: bool,
    /// Queues whose jobs are left out: who asks may not know of them.
    pub hidden_queues: Vec<NameForm>,
}

/// Names that begin alike and are of the same length.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NameForm {
    /// How they begin.
    pub prefix: String,
    /// How long they are.
    pub bytes: usize,
}

impl NameForm {
    /// Whether a name is one of them.
    pub fn fits(&self, name: &str) -> bool {
        name.len() == self.bytes && name.starts_with(&self.prefix)
    }
}

impl Filter {
    /// Whether the maintained counters alone tell how many jobs match.
    pub fn is_counted(&self) -> bool {
        let Self {
            states: _,
            queue: _,
            kind: _,
            process_id,
            tag,
            id_prefix,
            search,
            fields,
            hide_secrets: _,
            hidden_queues,
        } = self;
        process_id.is_none()
            && tag.is_none()
            && id_prefix.is_none()
            && search.is_empty()
            && fields.is_empty()
            && hidden_queues.is_empty()
    }

    /// Both filters at once. `Invalid` when they ask for two values where a job has one.
    pub fn and(self, other: Self) -> Result<Self> {
        let states = match (self.states.is_empty(), other.states.is_empty()) {
            (true, _) => other.states,
            (_, true) => self.states,
            (false, false) => {
                let both: Vec<_> =
                    self.states.into_iter().filter(|state| other.states.contains(state)).collect();
                if both.is_empty() {
                    return Err(Error::invalid("no job is in two states at once"));
                }
                both
            }
        };
        Ok(Self {
            states,
            queue: one_of("queue", self.queue, other.queue)?,
            kind: one_of("kind", self.kind, other.kind)?,
            process_id: one_of("process", self.process_id, other.process_id)?,
            tag: one_of("tag", self.tag, other.tag)?,
            id_prefix: one_of("id", self.id_prefix, other.id_prefix)?,
            search: [self.search, other.search].concat(),
            fields: [self.fields, other.fields].concat(),
            hide_secrets: self.hide_secrets || other.hide_secrets,
            hidden_queues: [self.hidden_queues, other.hidden_queues].concat(),
        })
    }

    /// Made ready to judge many jobs.
    pub fn matcher(&self) -> FilterMatcher<'_> {
        let text = |text| (text, IdRange::of(text).filter(|range| range.digits >= ID_DIGITS_MIN));
        FilterMatcher {
            filter: self,
            ids: self.id_prefix.as_deref().map(IdRange::of),
            texts: self.search.iter().map(String::as_str).map(text).collect(),
            fields: self.fields.iter().map(Finder::new).collect(),
        }
    }
}

pub(super) fn one_of<T: PartialEq + Display>(
    name: &str,
    one: Option<T>,
    other: Option<T>,
) -> Result<Option<T>> {
    match (one, other) {
        (Some(one), Some(other)) if one != other => {
            Err(Error::invalid(format!("the {name} is asked for twice: {one} and {other}")))
        }
        (one, other) => Ok(one.or(other)),
    }
}

/// All ids that begin with the same digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IdRange {
    /// The lowest of them.
    pub first: JobId,
    /// The highest of them.
    pub last: JobId,
    digits: usize,
}

impl IdRange {
    /// The ids that begin with `text`; `None` when no id can.
    pub fn of(text: &str) -> Option<Self> {
        let (mut first, mut last, mut digits) = ([0_u8; 16], [0xff_u8; 16], 0);
        for character in text.chars() {
            if character == '-' && digits > 0 {
                continue;
            }
            let digit = u8::try_from(character.to_digit(16)?).ok()?;
            let shift = if digits % 2 == 0 { 4 } else { 0 };
            let (low, high) = (first.get_mut(digits / 2)?, last.get_mut(digits / 2)?);
            *low |= digit << shift;
            *high &= (digit << shift) | !(0xf << shift);
            digits += 1;
        }
        let range = Self { first: JobId::from_bytes(first), last: JobId::from_bytes(last), digits };
        (1..=ID_DIGITS).contains(&digits).then_some(range)
    }

    /// Whether `id` is one of them.
    pub fn contains(&self, id: JobId) -> bool {
        (self.first..=self.last).contains(&id)
    }
}

/// What a job's row tells a filter.
#[derive(Debug, Clone, Copy)]
pub struct Candidate<'a> {
    /// Its id.
    pub id: JobId,
    /// Its state.
    pub state: State,
    /// Its queue.
    pub queue: &'a str,
    /// Its kind.
    pub kind: &'a str,
    /// Its process.
    pub process: Option<&'a str>,
}

/// A filter, ready to judge many jobs. A store asks the cheap questions first: the row, then the tag (which it looks up
/// itself), then the texts.
pub struct FilterMatcher<'a> {
    filter: &'a Filter,
    ids: Option<Option<IdRange>>,
    texts: Vec<(&'a str, Option<IdRange>)>,
    fields: Vec<Finder<'a>>,
}

impl FilterMatcher<'_> {
    /// Ids that are asked for; the inner `None` when no id can be one of them.
    pub fn ids(&self) -> Option<Option<IdRange>> {
        self.ids
    }

    /// Whether the job's row fits.
    pub fn row_fits(&self, job: &Candidate<'_>) -> bool {
        let wants = |wanted: Option<&str>, has: Option<&str>| wanted.is_none() || wanted == has;
        let filter = self.filter;
        (filter.states.is_empty() || filter.states.contains(&job.state))
            && wants(filter.queue.as_deref(), Some(job.queue))
            && wants(filter.kind.as_deref(), Some(job.kind))
            && wants(filter.process_id.as_ref().map(ProcessId::as_str), job.process)
            && self.ids.is_none_or(|range| range.is_some_and(|range| range.contains(job.id)))
            && !filter.hidden_queues.iter().any(|hidden| hidden.fits(job.queue))
    }

    /// Whether anything beside the row and the tag is asked for.
    pub fn reads_texts(&self) -> bool {
        !self.texts.is_empty() || !self.fields.is_empty()
    }

    /// Whether the job's texts fit. `others` fetches title and error; it is called only when payload and id leave a text
    /// to be found.
    pub fn texts_fit<E>(
        &self,
        id: JobId,
        payload: &str,
        others: impl FnOnce() -> Result<[Option<String>; 2], E>,
    ) -> Result<bool, E> {
        let hide = self.filter.hide_secrets;
        let payload = if hide { redact::json_text(payload) } else { payload.into() };
        if !self.fields.iter().all(|field| field.is_in(&payload)) {
            return Ok(false);
        }
        let is_start = |range: &Option<IdRange>| range.is_some_and(|range| range.contains(id));
        let mut left = self
            .texts
            .iter()
            .filter(|(text, range)| !is_start(range) && !payload.contains(*text))
            .map(|(text, _)| *text)
            .peekable();
        if left.peek().is_none() {
            return Ok(true);
        }
        let [title, error] = others()?;
        let error = if hide { error.map(|error| redact::text(&error).into_owned()) } else { error };
        let others = [title, error];
        Ok(left.all(|text| others.iter().flatten().any(|other| other.contains(text))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_start_of_an_id_is_a_range_of_ids() {
        let id: JobId = "0198c5a2-7d1e-7000-8000-00000000002a".parse().expect("an id");
        for start in ["0", "0198c5a2", "0198C5A2-7d", "0198c5a27d1e7", "0198c5a2-7d1e-7000-8000-00000000002a"]
        {
            assert!(IdRange::of(start).is_some_and(|range| range.contains(id)), "{start}");
        }
        for start in ["1", "0198c5a3", "0198c5a2-7e", "0198c5a2-7d1e-7000-8000-00000000002b"] {
            assert!(IdRange::of(start).is_some_and(|range| !range.contains(id)), "{start}");
        }
        for none in ["", "-", "-0198", "0198x", "0198 ", &"0".repeat(33)] {
            assert_eq!(IdRange::of(none), None, "{none}");
        }
    }

    #[test]
    fn two_filters_hold_at_once_or_contradict_each_other() {
        let filter = |text: &str| Filter::parse(text).expect("a search");
        let both = |one: &str, other: &str| filter(one).and(filter(other));
        assert_eq!(both("queue:a x", "kind:k y"), Ok(filter("queue:a kind:k x y")));
        assert_eq!(both("state:ready,failed", "state:failed"), Ok(filter("state:failed")));
        assert_eq!(both("queue:a", "queue:a"), Ok(filter("queue:a")));
        assert!(both("queue:a", "queue:b").is_err());
        assert!(both("state:ready", "state:failed").is_err());
    }
}
