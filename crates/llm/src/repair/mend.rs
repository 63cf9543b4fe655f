//! A parser that forgives what models get wrong in JSON: trailing commas, single and curly quotes, names without quotes,
//! Python's literals, comments, line breaks and stray backslashes in texts. It takes all that JSON is and reads it the
//! same way. It adds nothing: a value must be closed to count.

use serde_json::{Map, Value};

/// As deep as the strict parser goes; deeper ones could exhaust the stack.
const DEPTH_MAX: usize = 127;

/// The object or list that the text begins with, and where it ends.
pub(super) fn value(text: &str) -> Option<(Value, usize)> {
    let mut mender = Mender { text, at: 0, depth: 0 };
    let value = mender.value()?;
    Some((value, mender.at))
}

struct Mender<'t> {
    text: &'t str,
    at: usize,
    depth: usize,
}

impl Mender<'_> {
    fn value(&mut self) -> Option<Value> {
        self.skip_space()?;
        match self.peek()? {
            '{' => self.nested(Self::object),
            '[' => self.nested(Self::list),
            quote if closing_quote(quote).is_some() => self.string().map(Value::String),
            '-' | '0'..='9' => self.number(),
            _ => self.literal(),
        }
    }

    fn nested(&mut self, read: impl FnOnce(&mut Self) -> Option<Value>) -> Option<Value> {
        self.depth += 1;
        if self.depth > DEPTH_MAX {
            return None;
        }
        let value = read(self);
        self.depth -= 1;
        value
    }

    fn object(&mut self) -> Option<Value> {
        let mut fields = Map::new();
        self.items('{', '}', |mender| {
            let name = mender.name()?;
            mender.skip_space()?;
            mender.take(':')?;
            fields.insert(name, mender.value()?);
            Some(())
        })?;
        Some(Value::Object(fields))
    }

    fn list(&mut self) -> Option<Value> {
        let mut items = Vec::new();
        self.items('[', ']', |mender| {
            items.push(mender.value()?);
            Some(())
        })?;
        Some(Value::Array(items))
    }

    /// Items between brackets, with commas between them and perhaps one after the last.
    fn items(
        &mut self,
        open: char,
        close: char,
        mut item: impl FnMut(&mut Self) -> Option<()>,
    ) -> Option<()> {
        self.take(open)?;
        loop {
            self.skip_space()?;
            if self.take(close).is_some() {
                return Some(());
            }
            item(self)?;
            self.skip_space()?;
            if self.take(',').is_none() {
                return self.take(close);
            }
        }
    }

    fn name(&mut self) -> Option<String> {
        if closing_quote(self.peek()?).is_some() {
            return self.string();
        }
        let word = self.word();
        let begins = word.starts_with(|char: char| char.is_alphabetic() || char == '_' || char == '$');
        begins.then(|| word.to_owned())
    }

    fn string(&mut self) -> Option<String> {
        let close = closing_quote(self.next()?)?;
        let mut string = String::new();
        loop {
            match self.next()? {
                char if char == close => return Some(string),
                '\\' => self.escape(&mut string)?,
                // Line breaks belong escaped; models forget it, and the meaning is plain.
                char => string.push(char),
            }
        }
    }

    fn escape(&mut self, string: &mut String) -> Option<()> {
        let char = match self.next()? {
            'n' => '\n',
            't' => '\t',
            'r' => '\r',
            'b' => '\u{8}',
            'f' => '\u{c}',
            'u' => self.unicode()?,
            char @ ('"' | '\'' | '\\' | '/') => char,
            // A formula or a regular expression: the backslash was meant.
            other => {
                string.push('\\');
                other
            }
        };
        string.push(char);
        Some(())
    }

    fn unicode(&mut self) -> Option<char> {
        let first = self.four_digits()?;
        if !(0xd800..0xdc00).contains(&first) {
            return char::from_u32(first);
        }
        self.take('\\')?;
        self.take('u')?;
        let second = self.four_digits().filter(|unit| (0xdc00..0xe000).contains(unit))?;
        char::from_u32(0x1_0000 + ((first - 0xd800) << 10) + (second - 0xdc00))
    }

    fn four_digits(&mut self) -> Option<u32> {
        let digits = self.text.get(self.at..self.at + 4)?;
        if !digits.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return None;
        }
        self.at += 4;
        u32::from_str_radix(digits, 16).ok()
    }

    fn number(&mut self) -> Option<Value> {
        let rest = &self.text[self.at..];
        let end =
            rest.find(|char: char| !char.is_ascii_digit() && !"+-.eE".contains(char)).unwrap_or(rest.len());
        let number = serde_json::from_str(&rest[..end]).ok()?;
        self.at += end;
        Some(number)
    }

    fn literal(&mut self) -> Option<Value> {
        match self.word() {
            "true" | "True" => Some(Value::Bool(true)),
            "false" | "False" => Some(Value::Bool(false)),
            "null" | "None" => Some(Value::Null),
            _ => None,
        }
    }

    fn word(&mut self) -> &str {
        let rest = &self.text[self.at..];
        let end =
            rest.find(|char: char| !char.is_alphanumeric() && !"_$-".contains(char)).unwrap_or(rest.len());
        self.at += end;
        &rest[..end]
    }

    /// Skips space and comments; nothing when a comment is not closed.
    fn skip_space(&mut self) -> Option<()> {
        loop {
            let rest = &self.text[self.at..];
            let trimmed = rest.trim_start();
            self.at += rest.len() - trimmed.len();
            if trimmed.starts_with("//") {
                self.at += trimmed.find('\n').unwrap_or(trimmed.len());
            } else if trimmed.starts_with("/*") {
                self.at += trimmed.find("*/")? + 2;
            } else {
                return Some(());
            }
        }
    }

    fn peek(&self) -> Option<char> {
        self.text[self.at..].chars().next()
    }

    fn next(&mut self) -> Option<char> {
        let char = self.peek()?;
        self.at += char.len_utf8();
        Some(char)
    }

    fn take(&mut self, expected: char) -> Option<()> {
        (self.peek() == Some(expected)).then(|| self.at += expected.len_utf8())
    }
}

fn closing_quote(open: char) -> Option<char> {
    match open {
        '"' | '\'' => Some(open),
        '“' => Some('”'),
        '‘' => Some('’'),
        _ => None,
    }
}
