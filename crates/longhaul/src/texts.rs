//! Texts and files that the command line names: `TEXT` or `@FILE`, and one error for a missing file.

use std::convert::Infallible;
use std::io;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use anyhow::Result;
use longhaul_llm::schema;
use serde_json::Value;

use crate::exit::{Code, Failure};
use crate::small_file;

/// A text of the command line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum TextArg {
    /// As it was given, with `\n`, `\t` and `\\` as a shell's quotes cannot write them.
    Given(String),
    /// The content of a file, as it is.
    File(PathBuf),
}

impl FromStr for TextArg {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Self, Infallible> {
        Ok(match text.strip_prefix('@') {
            Some(rest) if rest.starts_with('@') => Self::Given(unescaped(rest)),
            Some(path) => Self::File(path.into()),
            None => Self::Given(unescaped(text)),
        })
    }
}

impl TextArg {
    /// The text; `option` is named where it cannot be read. The last line end of a file is not part of the text.
    pub(crate) fn read(&self, option: &str) -> Result<String> {
        match self {
            Self::Given(text) => Ok(text.clone()),
            Self::File(path) => {
                let hint = format!("{option} @FILE reads a file; write @@ for a text that begins with @");
                let mut text = read(option, path, &hint)?;
                let end = text.trim_end_matches(['\n', '\r']).len();
                text.truncate(end);
                Ok(text)
            }
        }
    }

    /// The file that it is in.
    pub(crate) fn file(&self) -> Option<&Path> {
        match self {
            Self::Given(_) => None,
            Self::File(path) => Some(path),
        }
    }
}

/// `\n` is a new line, `\t` a tab, `\\` a backslash; others stay, since a template has an escape of its own.
fn unescaped(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('\\') {
        plain += &rest[..at];
        let (letter, length) = match rest.as_bytes().get(at + 1) {
            Some(b'n') => ('\n', 2),
            Some(b't') => ('\t', 2),
            Some(b'\\') => ('\\', 2),
            Some(_) | None => ('\\', 1),
        };
        plain.push(letter);
        rest = &rest[at + length..];
    }
    plain + rest
}

/// A whole file of text that an option names.
pub(crate) fn read(option: &str, path: &Path, hint: &str) -> Result<String> {
    let name = format!("{option} {}", path.display());
    Ok(small_file::read(path).map_err(|error| unreadable(&name, &error).hint(hint))?)
}

/// A file with a JSON Schema, checked.
pub(crate) fn read_schema(path: &Path, hint: &str) -> Result<Value> {
    let wrong = |problem: String| {
        Failure::new(Code::Usage, format!("--schema {} cannot be used: {problem}", path.display())).hint(hint)
    };
    let value: Value =
        serde_json::from_str(&read("--schema", path, hint)?).map_err(|error| wrong(error.to_string()))?;
    schema::Compiled::new(&value).map_err(|error| wrong(error.to_string()))?;
    Ok(value)
}

/// A file that the command line names and that cannot be read.
pub(crate) fn unreadable(name: &str, error: &io::Error) -> Failure {
    Failure::new(code_of(error), format!("{name} cannot be read: {error}"))
}

/// The exit code: a missing file or folder counts as nothing matched, a folder in place of a file as wrong usage.
pub(crate) fn code_of(error: &io::Error) -> Code {
    match error.kind() {
        io::ErrorKind::NotFound => Code::NothingMatched,
        io::ErrorKind::IsADirectory => Code::Usage,
        _ => Code::Failure,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_on_the_command_line_may_have_line_ends_and_tabs() {
        for (given, expected) in [
            (r"one\ntwo\tthree", "one\ntwo\tthree"),
            (r"C:\\new", r"C:\new"),
            (r"\{{braces}} \d \", r"\{{braces}} \d \"),
            ("@@home", "@home"),
            ("", ""),
        ] {
            assert_eq!(given.parse(), Ok(TextArg::Given(expected.to_owned())));
        }
        assert_eq!("@system.md".parse(), Ok(TextArg::File("system.md".into())));
    }

    #[test]
    fn a_file_of_text_is_taken_as_it_is_but_for_its_last_line_end() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("t.md");
        std::fs::write(&path, "one\\n\n  two\n\n").expect("writing");
        assert_eq!(TextArg::File(path).read("--system").expect("a text"), "one\\n\n  two");
    }
}
