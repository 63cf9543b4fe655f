//! A prompt with places for fields: `Translate {{text}} to {{lang}}`. A field's value is put in as it is: braces in it
//! mean nothing. `\{{` stands for two braces.

use std::str::FromStr;

/// What opens a place.
const OPEN: &str = "{{";
/// What closes it.
const CLOSE: &str = "}}";
/// What writes two braces.
const ESCAPED: &str = "\\{{";

/// A parsed template.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Template {
    /// As it was written.
    text: String,
    parts: Vec<Piece>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Piece {
    Text(String),
    Field(String),
}

impl FromStr for Template {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut parts = Vec::new();
        let mut literal = String::new();
        let mut rest = text;
        while let Some(at) = rest.find(OPEN) {
            let (before, from_open) = rest.split_at(at);
            let after = &from_open[OPEN.len()..];
            if let Some(before) = before.strip_suffix('\\') {
                literal += before;
                literal += &ESCAPED[1..];
                rest = after;
                continue;
            }
            literal += before;
            let (name, after) = place(after)?;
            if !literal.is_empty() {
                parts.push(Piece::Text(std::mem::take(&mut literal)));
            }
            parts.push(Piece::Field(name.to_owned()));
            rest = after;
        }
        literal += rest;
        if !literal.is_empty() {
            parts.push(Piece::Text(literal));
        }
        if !parts.iter().any(|part| matches!(part, Piece::Field(_))) {
            return Err("the template has no {{field}}, so all prompts would be the same".to_owned());
        }
        Ok(Self { text: text.to_owned(), parts })
    }
}

/// The name up to the closing braces, and what follows them.
fn place(after: &str) -> Result<(&str, &str), String> {
    let shown = |text: &str| text.chars().take(20).collect::<String>();
    let (name, rest) =
        after.split_once(CLOSE).ok_or_else(|| format!("`{{{{{}` is not closed by `}}}}`", shown(after)))?;
    let name = name.trim();
    if name.is_empty() || name.contains(['{', '}', '\n']) {
        return Err(format!(
            "`{{{{{}` is not a field: write {{{{name}}}}, or \\{{{{ for two braces as such",
            shown(after)
        ));
    }
    Ok((name, rest))
}

impl Template {
    /// As it was written.
    pub(crate) fn as_str(&self) -> &str {
        &self.text
    }

    /// The fields that it needs, in the order of their places.
    pub(crate) fn fields(&self) -> impl Iterator<Item = &str> {
        self.parts.iter().filter_map(|part| match part {
            Piece::Field(name) => Some(name.as_str()),
            Piece::Text(_) => None,
        })
    }

    /// Puts the fields in; the name of the first one that `field` does not know is the error.
    pub(super) fn fill(&self, mut field: impl FnMut(&str) -> Option<String>) -> Result<String, String> {
        let mut text = String::new();
        for part in &self.parts {
            match part {
                Piece::Text(literal) => text += literal,
                Piece::Field(name) => text += &field(name).ok_or_else(|| name.clone())?,
            }
        }
        Ok(text)
    }
}
