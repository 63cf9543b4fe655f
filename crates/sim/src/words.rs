//! The words that made-up texts consist of: plain ASCII, so that bytes are characters.

use super::draw::Draw;

pub(crate) const ADJECTIVES: &[&str] = &[
    "quiet", "northern", "steady", "early", "narrow", "broad", "common", "careful", "distant", "plain",
    "recent", "shared", "formal", "local", "gradual", "open",
];

pub(crate) const NOUNS: &[&str] = &[
    "harbour", "ledger", "river", "market", "engine", "garden", "report", "bridge", "signal", "letter",
    "valley", "method", "council", "season", "record", "journey", "figure", "village", "margin", "harvest",
    "border", "witness", "pattern", "station",
];

pub(crate) const VERBS: &[&str] = &[
    "follows",
    "supports",
    "limits",
    "describes",
    "precedes",
    "shapes",
    "explains",
    "carries",
    "meets",
    "replaces",
    "confirms",
    "reaches",
];

/// An adjective and a noun.
pub(crate) fn phrase(draw: &mut Draw) -> String {
    format!("{} {}", draw.pick(ADJECTIVES), draw.pick(NOUNS))
}

/// A sentence of seven words.
pub(crate) fn sentence(draw: &mut Draw, text: &mut String) {
    text.push_str("The ");
    let pieces = [ADJECTIVES, NOUNS, VERBS].map(|list| draw.pick(list));
    for piece in pieces {
        text.push_str(piece);
        text.push(' ');
    }
    text.push_str("the ");
    text.push_str(draw.pick(ADJECTIVES));
    text.push(' ');
    text.push_str(draw.pick(NOUNS));
    text.push('.');
}
