//! A text for a regular expression, as far as schemas commonly use them: literals, classes, groups, alternatives and
//! counts. Anything else has no text here, and the schema's string is then made without its pattern.

use std::iter::Peekable;
use std::str::Chars;

use super::draw::Draw;

/// Longest pattern that is looked at.
const PATTERN_MAX: usize = 500;
/// Deepest group.
const DEPTH_MAX: usize = 16;
/// Most repetitions of one piece.
const REPEAT_MAX: usize = 1000;

/// A text that matches, of at least `least` characters where a repetition allows it.
pub(crate) fn text_for(pattern: &str, draw: &mut Draw, least: usize) -> Option<String> {
    if pattern.len() > PATTERN_MAX {
        return None;
    }
    let mut reader = Reader { rest: pattern.chars().peekable(), draw, least, depth: 0 };
    let text = reader.alternatives()?;
    reader.rest.next().is_none().then_some(text)
}

struct Reader<'a> {
    rest: Peekable<Chars<'a>>,
    draw: &'a mut Draw,
    least: usize,
    depth: usize,
}

impl Reader<'_> {
    /// The first alternative; the others are read and dropped.
    fn alternatives(&mut self) -> Option<String> {
        self.depth += 1;
        if self.depth > DEPTH_MAX {
            return None;
        }
        let first = self.sequence()?;
        while self.rest.next_if_eq(&'|').is_some() {
            self.sequence()?;
        }
        self.depth -= 1;
        Some(first)
    }

    fn sequence(&mut self) -> Option<String> {
        let mut text = String::new();
        while let Some(&next) = self.rest.peek() {
            if next == '|' || next == ')' {
                break;
            }
            self.rest.next();
            let piece = match next {
                '^' | '$' => continue,
                '(' => Piece::Text(self.group()?),
                '[' => Piece::Class(self.class()?),
                '.' => Piece::Class(vec![('a', 'z')]),
                '\\' => self.escape()?,
                '*' | '+' | '?' | '{' => return None,
                literal => Piece::Class(vec![(literal, literal)]),
            };
            let (least, most) = self.count()?;
            let missing = self.least.saturating_sub(text.chars().count());
            let times = if most > least { least.max(missing.max(1)).min(most) } else { least };
            for _ in 0..times.min(REPEAT_MAX) {
                match &piece {
                    Piece::Text(piece) => text.push_str(piece),
                    Piece::Class(ranges) => text.push(self.one_of(ranges)?),
                }
            }
        }
        Some(text)
    }

    fn group(&mut self) -> Option<String> {
        if self.rest.next_if_eq(&'?').is_some() {
            // Only `(?:`; looking around has no text of its own.
            self.rest.next_if_eq(&':')?;
        }
        let text = self.alternatives()?;
        self.rest.next_if_eq(&')')?;
        Some(text)
    }

    fn class(&mut self) -> Option<Vec<(char, char)>> {
        let negated = self.rest.next_if_eq(&'^').is_some();
        let mut ranges = Vec::new();
        loop {
            let low = match self.rest.next()? {
                ']' if !ranges.is_empty() => break,
                '\\' => match self.escape()? {
                    Piece::Class(mut class) if class.len() == 1 && class[0].0 == class[0].1 => class.pop()?.0,
                    Piece::Class(class) => {
                        ranges.extend(class);
                        continue;
                    }
                    Piece::Text(_) => return None,
                },
                low => low,
            };
            let mut ahead = self.rest.clone();
            if ahead.next() == Some('-') && ahead.next().is_some_and(|high| high != ']') {
                self.rest.next();
                ranges.push((low, self.rest.next()?));
            } else {
                ranges.push((low, low));
            }
        }
        if negated {
            let free = ('a'..='z').chain('0'..='9').chain([' ', '_', '-']);
            let mut allowed = free.filter(|c| !ranges.iter().any(|(low, high)| (low..=high).contains(&c)));
            return allowed.next().map(|c| vec![(c, c)]);
        }
        Some(ranges)
    }

    fn escape(&mut self) -> Option<Piece> {
        Some(Piece::Class(match self.rest.next()? {
            'd' => vec![('0', '9')],
            'w' => vec![('a', 'z')],
            's' => vec![(' ', ' ')],
            'n' => vec![('\n', '\n')],
            't' => vec![('\t', '\t')],
            letter if letter.is_ascii_alphanumeric() => return None,
            literal => vec![(literal, literal)],
        }))
    }

    fn count(&mut self) -> Option<(usize, usize)> {
        let count = match self.rest.peek() {
            Some('*') => (0, REPEAT_MAX),
            Some('+') => (1, REPEAT_MAX),
            Some('?') => (0, 1),
            Some('{') => {
                self.rest.next();
                let mut inner = String::new();
                loop {
                    match self.rest.next()? {
                        '}' => break,
                        c => inner.push(c),
                    }
                }
                self.rest.next_if_eq(&'?');
                let (least, most) = inner.split_once(',').unwrap_or((&inner, &inner));
                let least = least.parse().ok()?;
                return Some((
                    least,
                    if most.is_empty() { REPEAT_MAX.max(least) } else { most.parse().ok()? },
                ));
            }
            _ => return Some((1, 1)),
        };
        self.rest.next();
        self.rest.next_if_eq(&'?');
        Some(count)
    }

    fn one_of(&mut self, ranges: &[(char, char)]) -> Option<char> {
        let (low, high) = self.draw.pick(ranges);
        let width = u64::from(u32::from(high).checked_sub(u32::from(low))?) + 1;
        char::from_u32(u32::from(low) + u32::try_from(self.draw.below(width)).ok()?)
    }
}

enum Piece {
    Text(String),
    Class(Vec<(char, char)>),
}
