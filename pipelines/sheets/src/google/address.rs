//! How a user names a sheet: the address from the browser, or `sheets://ID/Title`.

use std::fmt;
use std::str::FromStr;

use super::super::{Error, Result};

const SCHEME: &str = "sheets://";
const BROWSER: [&str; 2] = ["https://docs.google.com/spreadsheets/", "docs.google.com/spreadsheets/"];

/// A sheet as a user names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SheetAddress {
    /// Id of the spreadsheet.
    pub spreadsheet: String,
    /// Which of its sheets.
    pub sheet: SheetChoice,
}

/// Which sheet of a spreadsheet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SheetChoice {
    /// The first, when nothing is said.
    First,
    /// By its title.
    Title(String),
    /// By the number in the browser's address.
    Gid(i64),
}

impl SheetAddress {
    /// Whether a text is meant to be one, so that everything else can be a file.
    pub fn is_meant_by(text: &str) -> bool {
        text.starts_with(SCHEME) || BROWSER.iter().any(|start| text.starts_with(start))
    }
}

impl FromStr for SheetAddress {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let text = text.trim();
        let (spreadsheet, sheet) = if let Some(rest) = text.strip_prefix(SCHEME) {
            of_scheme(rest)
        } else if let Some(rest) = BROWSER.iter().find_map(|start| text.strip_prefix(start)) {
            of_browser(rest).ok_or_else(|| wrong(text))?
        } else {
            return Err(wrong(text));
        };
        let is_id = |id: &str| {
            !id.is_empty() && id.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte))
        };
        // `d/e/…` is a copy that was published: it can be looked at, and no more.
        if !is_id(spreadsheet) || spreadsheet == "e" {
            return Err(wrong(text));
        }
        Ok(Self { spreadsheet: spreadsheet.to_owned(), sheet })
    }
}

impl fmt::Display for SheetAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let id = &self.spreadsheet;
        match &self.sheet {
            SheetChoice::First => write!(f, "{SCHEME}{id}"),
            SheetChoice::Title(title) => write!(f, "{SCHEME}{id}/{title}"),
            SheetChoice::Gid(gid) => write!(f, "https://docs.google.com/spreadsheets/d/{id}/edit#gid={gid}"),
        }
    }
}

/// The title is taken as it stands, slashes and percent signs too: titles may have them.
fn of_scheme(rest: &str) -> (&str, SheetChoice) {
    match rest.split_once('/') {
        None | Some((_, "")) => (rest.trim_end_matches('/'), SheetChoice::First),
        Some((id, title)) => (id, SheetChoice::Title(title.to_owned())),
    }
}

fn of_browser(rest: &str) -> Option<(&str, SheetChoice)> {
    // Somebody with several accounts has `u/1/d/…`.
    let (_, rest) = rest.split_once("d/").filter(|(before, _)| before.is_empty() || before.ends_with('/'))?;
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    let (id, tail) = rest.split_at(end);
    let gid = tail.rsplit("gid=").next().filter(|_| tail.contains("gid="));
    let sheet = match gid {
        None => SheetChoice::First,
        Some(number) => {
            let end = number.find(['&', '#']).unwrap_or(number.len());
            SheetChoice::Gid(number[..end].parse().ok()?)
        }
    };
    Some((id, sheet))
}

fn wrong(text: &str) -> Error {
    Error::Invalid(format!(
        "{text}: is no Google sheet; give the address from the browser, \
         https://docs.google.com/spreadsheets/d/ID/edit#gid=0, or sheets://ID/TITLE"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_understood() {
        let title = |title: &str| SheetChoice::Title(title.to_owned());
        let browser = "https://docs.google.com/spreadsheets";
        for (text, id, sheet) in [
            ("sheets://1aB-_9/Sheet1".to_owned(), "1aB-_9", title("Sheet1")),
            ("sheets://1aB/My sheet".to_owned(), "1aB", title("My sheet")),
            ("sheets://1aB/50%/half".to_owned(), "1aB", title("50%/half")),
            ("sheets://1aB".to_owned(), "1aB", SheetChoice::First),
            ("sheets://1aB/".to_owned(), "1aB", SheetChoice::First),
            (format!("{browser}/d/1aB/edit#gid=7"), "1aB", SheetChoice::Gid(7)),
            (format!("{browser}/d/1aB/edit?gid=7#gid=8"), "1aB", SheetChoice::Gid(8)),
            (format!("{browser}/d/1aB/edit?gid=7&x=1"), "1aB", SheetChoice::Gid(7)),
            (format!("{browser}/d/1aB/edit?usp=sharing"), "1aB", SheetChoice::First),
            (format!("{browser}/d/1aB"), "1aB", SheetChoice::First),
            (format!("{browser}/u/1/d/1aB/edit#gid=0"), "1aB", SheetChoice::Gid(0)),
            ("docs.google.com/spreadsheets/d/1aB/edit".to_owned(), "1aB", SheetChoice::First),
        ] {
            assert!(SheetAddress::is_meant_by(&text), "{text}");
            let address: SheetAddress = text.parse().expect(&text);
            assert_eq!(address, SheetAddress { spreadsheet: id.to_owned(), sheet }, "{text}");
        }
    }

    #[test]
    fn what_is_no_address_is_refused_with_an_example() {
        for text in [
            "",
            "table.csv",
            "sheets://",
            "sheets:///Title",
            "sheets://a b/Title",
            "https://docs.google.com/spreadsheets/d//edit",
            "https://docs.google.com/spreadsheets/d/1aB/edit#gid=x",
            "https://docs.google.com/spreadsheets/d/e/2PACX-1/pubhtml",
            "https://docs.google.com/document/d/1aB/edit",
            "https://example.com/spreadsheets/d/1aB",
        ] {
            let refused = text.parse::<SheetAddress>().expect_err(text).to_string();
            assert!(refused.contains("sheets://ID/TITLE"), "{refused}");
        }
        assert!(!SheetAddress::is_meant_by("table.csv"));
    }
}
