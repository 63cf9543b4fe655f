//! A search text as people type it, read as a [`Filter`]: `state:failed queue:mail user.id:42 "not found" timeout`.

use std::fmt;

use super::filter::{IdRange, one_of};
use super::{Field, Filter};
use crate::error::{Error, Result};
use crate::limits::{SEARCH_BYTES_MAX, SEARCH_WORDS_MAX};
use crate::state::State;

/// Before the first dash of an id.
const ID_HEAD_DIGITS: usize = 8;
/// An id without its dashes.
const ID_DIGITS: usize = 32;

impl Filter {
    /// Reads a search text. Words stand between spaces, and all of them must match:
    ///
    /// - `state:`, `queue:`, `kind:`, `process:`, `tag:` and `id:` (its start) are the filter's own conditions; states may
    ///   be several, `state:failed,cancelled`;
    /// - any other `name:value` is a field of the payload, `payload.name:value` also one that is called like the above;
    /// - an id, whole or cut off after its first dash, is that job;
    /// - everything else is text in the payload, title or error. Quotes keep spaces and colons: `"not found"`,
    ///   `user.name:"Ann Lee"`.
    pub fn parse(text: &str) -> Result<Self> {
        if text.len() > SEARCH_BYTES_MAX {
            return Err(Error::invalid(format!("a search has at most {SEARCH_BYTES_MAX} bytes")));
        }
        let mut filter = Self::default();
        let mut rest = text.trim_start();
        for _ in 0..SEARCH_WORDS_MAX {
            if rest.is_empty() {
                return Ok(filter);
            }
            let (word, after) = Word::read(rest);
            filter.add(word)?;
            rest = after.trim_start();
        }
        if rest.is_empty() {
            return Ok(filter);
        }
        Err(Error::invalid(format!("a search has at most {SEARCH_WORDS_MAX} words; quote a longer text")))
    }

    fn add(&mut self, word: Word) -> Result<()> {
        let (name, value) = match word {
            Word::Text(text) => {
                self.search.push(text);
                return Ok(());
            }
            Word::Id(id) => ("id".to_owned(), id),
            Word::Pair(name, value) => (name, value),
        };
        let set = |slot: &mut Option<String>, value: String| {
            *slot = one_of(&name, slot.take(), Some(value))?;
            Ok(())
        };
        match name.as_str() {
            "state" => {
                let states: Vec<State> = value.split(',').map(str::parse).collect::<Result<_>>()?;
                self.states.extend(states);
                Ok(())
            }
            "queue" => set(&mut self.queue, value),
            "kind" => set(&mut self.kind, value),
            "tag" => set(&mut self.tag, value),
            "id" => set(&mut self.id_prefix, value),
            "process" => {
                self.process_id = one_of(&name, self.process_id.take(), Some(value.into()))?;
                Ok(())
            }
            field => {
                let path = field.strip_prefix("payload.").unwrap_or(field).to_owned();
                self.fields.push(Field { path, value });
                Ok(())
            }
        }
    }
}

/// The search text that means the same.
impl fmt::Display for Filter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let states: Vec<&str> = self.states.iter().map(|state| state.as_str()).collect();
        let own = [
            ("state", (!states.is_empty()).then(|| states.join(","))),
            ("queue", self.queue.clone()),
            ("kind", self.kind.clone()),
            ("process", self.process_id.as_ref().map(|id| id.as_str().to_owned())),
            ("tag", self.tag.clone()),
            ("id", self.id_prefix.clone()),
        ];
        let own = own.into_iter().filter_map(|(name, value)| Some(format!("{name}:{}", quoted(&value?))));
        let fields =
            self.fields.iter().map(|field| format!("payload.{}:{}", field.path, quoted(&field.value)));
        let texts = self.search.iter().map(|text| quoted(text));
        f.write_str(&own.chain(fields).chain(texts).collect::<Vec<_>>().join(" "))
    }
}

fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
}

/// A word of a search.
#[derive(Debug, PartialEq, Eq)]
enum Word {
    Text(String),
    Id(String),
    Pair(String, String),
}

impl Word {
    /// The first word of a text that begins with one, and what stands after it.
    fn read(text: &str) -> (Self, &str) {
        if let Some(quoted) = text.strip_prefix('"') {
            let (phrase, rest) = phrase(quoted);
            return (Self::Text(phrase), rest);
        }
        let (word, rest) = text.split_at(text.find(char::is_whitespace).unwrap_or(text.len()));
        let Some((name, value)) = text.split_once(':').filter(|(name, _)| is_name(name)) else {
            let word = word.to_owned();
            return (if is_id(&word) { Self::Id(word) } else { Self::Text(word) }, rest);
        };
        if let Some(quoted) = value.strip_prefix('"') {
            let (phrase, rest) = phrase(quoted);
            return (Self::Pair(name.to_owned(), phrase), rest);
        }
        let value = &word[name.len() + 1..];
        // The address of a page is no field, and a name without a value is a word that ends with a colon.
        if value.is_empty() || value.starts_with("//") {
            return (Self::Text(word.to_owned()), rest);
        }
        (Self::Pair(name.to_owned(), value.to_owned()), rest)
    }
}

/// A text up to its closing quote, or to its end when there is none; a backslash keeps the next character.
fn phrase(text: &str) -> (String, &str) {
    let mut phrase = String::new();
    let mut characters = text.char_indices();
    while let Some((index, character)) = characters.next() {
        match character {
            '"' => return (phrase, &text[index + 1..]),
            '\\' => phrase.extend(characters.next().map(|(_, kept)| kept)),
            _ => phrase.push(character),
        }
    }
    (phrase, "")
}

/// The name of a field, not the hour of a time and not a piece of JSON.
fn is_name(text: &str) -> bool {
    let first = text.chars().next();
    first.is_some_and(|c| c.is_alphabetic() || c == '_' || c == '$')
        && text.chars().all(|c| c.is_alphanumeric() || matches!(c, '_' | '$' | '.' | '-'))
}

/// Whether nothing but an id looks like this: its digits with at least the first dash, or all of them.
fn is_id(word: &str) -> bool {
    let digits = word.chars().filter(|c| *c != '-').count();
    let dashed = word.find('-') == Some(ID_HEAD_DIGITS);
    IdRange::of(word).is_some() && (dashed || digits == ID_DIGITS)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(texts: &[&str]) -> Filter {
        Filter { search: texts.iter().map(|text| (*text).to_owned()).collect(), ..Filter::default() }
    }

    fn field(path: &str, value: &str) -> Filter {
        let field = Field { path: path.to_owned(), value: value.to_owned() };
        Filter { fields: vec![field], ..Filter::default() }
    }

    #[test]
    fn words_become_conditions() {
        let text = |text: &str| Some(text.to_owned());
        let none = Filter::default;
        let id = "0198c5a2-7d1e-7000-8000-00000000002a";
        for (search, filter) in [
            ("", none()),
            ("  ", none()),
            ("timeout", texts(&["timeout"])),
            (" not  found ", texts(&["not", "found"])),
            (r#""not  found" x"#, texts(&["not  found", "x"])),
            (r#""say \"hi\" \\""#, texts(&[r#"say "hi" \"#])),
            (r#""no end"#, texts(&["no end"])),
            ("queue:mail", Filter { queue: text("mail"), ..none() }),
            ("kind:llm.run", Filter { kind: text("llm.run"), ..none() }),
            ("tag:a:b", Filter { tag: text("a:b"), ..none() }),
            ("process:\"the night\"", Filter { process_id: Some("the night".into()), ..none() }),
            ("id:0198", Filter { id_prefix: text("0198"), ..none() }),
            (id, Filter { id_prefix: text(id), ..none() }),
            ("0198c5a2-7d", Filter { id_prefix: text("0198c5a2-7d"), ..none() }),
            (&"0a".repeat(16), Filter { id_prefix: Some("0a".repeat(16)), ..none() }),
            (&format!("\"{id}\""), texts(&[id])),
            ("0198c5a2", texts(&["0198c5a2"])),
            ("2026-01-02", texts(&["2026-01-02"])),
            ("state:failed", Filter { states: vec![State::Failed], ..none() }),
            (
                "state:failed,ready state:parked",
                Filter { states: vec![State::Failed, State::Ready, State::Parked], ..none() },
            ),
            ("user.id:42", field("user.id", "42")),
            ("user.name:\"Ann Lee\"", field("user.name", "Ann Lee")),
            ("名前:花子", field("名前", "花子")),
            ("payload.queue:x", field("queue", "x")),
            ("note:", texts(&["note:"])),
            ("12:30", texts(&["12:30"])),
            ("https://example.com/a", texts(&["https://example.com/a"])),
            (r#"{"n":2"#, texts(&[r#"{"n":2"#])),
            ("say:\"hi", field("say", "hi")),
        ] {
            assert_eq!(Filter::parse(search).as_ref(), Ok(&filter), "{search}");
        }
    }

    #[test]
    fn what_cannot_be_meant_is_refused() {
        let many = "x ".repeat(SEARCH_WORDS_MAX + 1);
        let long = "x".repeat(SEARCH_BYTES_MAX + 1);
        for (search, part) in [
            ("state:done", "is not a state"),
            ("queue:a queue:b", "the queue is asked for twice"),
            ("process:a process:b", "the process is asked for twice"),
            ("id:01 id:02", "the id is asked for twice"),
            (many.as_str(), "words"),
            (long.as_str(), "bytes"),
        ] {
            let error = Filter::parse(search).expect_err(part).to_string();
            assert!(error.contains(part), "{error}");
        }
        assert!(Filter::parse(&"x ".repeat(SEARCH_WORDS_MAX)).is_ok());
    }

    #[test]
    fn a_filter_as_text_means_the_same() {
        let filter = Filter {
            states: vec![State::Failed, State::Ready],
            queue: Some("a b".to_owned()),
            kind: Some("llm.request".to_owned()),
            process_id: Some("p:1".into()),
            tag: Some(r#"say "hi" \"#.to_owned()),
            id_prefix: Some("0198".to_owned()),
            search: vec!["not found".to_owned(), "state:failed".to_owned()],
            fields: vec![Field { path: "queue".to_owned(), value: "4 2".to_owned() }],
            hide_secrets: false,
            hidden_queues: Vec::new(),
        };
        for filter in [filter, Filter::default(), texts(&["0198c5a2-7d1e-7000-8000-00000000002a"])] {
            assert_eq!(Filter::parse(&filter.to_string()), Ok(filter.clone()), "{filter}");
        }
    }
}
