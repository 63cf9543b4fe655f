//! What Google says when it does not do what it was asked, by what can be done about it.

use std::error::Error as StdError;
use std::time::Duration;

use serde_json::Value;

use super::super::places::SinkError;

/// Letters of Google's own words that are passed on.
const WORDS_MAX: usize = 400;

/// Why a call came to nothing.
#[derive(Debug)]
pub(super) enum Failure {
    /// Google answered, and it was no.
    Status {
        /// The status of HTTP.
        status: u16,
        /// Google's words.
        words: String,
        /// How long to wait, if it says so.
        retry_after: Option<Duration>,
    },
    /// It was decided already.
    Decided(SinkError),
}

impl From<SinkError> for Failure {
    fn from(error: SinkError) -> Self {
        Self::Decided(error)
    }
}

impl Failure {
    /// Part of what was asked for lies outside of the sheet.
    pub(super) fn is_beyond_the_grid(&self) -> bool {
        matches!(self, Self::Status { status: 400, words, .. } if words.contains("exceeds grid limits"))
    }

    /// What it means for whoever asked on behalf of an account.
    pub(super) fn explained(self, email: &str, spreadsheet: &str) -> SinkError {
        match self {
            Self::Decided(error) => error,
            Self::Status { status, words, retry_after } => match status {
                408 | 429 | 500.. => outage(format!("Google answered {status}: {words}"), retry_after),
                _ => SinkError::Refused(refusal(status, &words, email, spreadsheet)),
            },
        }
    }
}

fn refusal(status: u16, words: &str, email: &str, spreadsheet: &str) -> String {
    match status {
        401 => format!(
            "Google does not accept the service account {email} (401: {words}): it may be disabled; \
             make a new key for it in the Google Cloud console"
        ),
        403 if words.contains("has not been used") || words.contains("is disabled") => format!(
            "the project of {email} may not use Google Sheets (403: {words}): \
             enable the Google Sheets API for it in the Google Cloud console"
        ),
        403 => format!(
            "{email} may not edit the spreadsheet {spreadsheet} (403: {words}): \
             share the spreadsheet with this address, as an editor"
        ),
        404 => format!(
            "there is no spreadsheet {spreadsheet} (404: {words}): \
             it was deleted, or its address is not the one in the browser"
        ),
        400 if words.contains("Unable to parse range") => format!(
            "the spreadsheet {spreadsheet} no longer has the sheet that was asked for (400: {words}): \
             it was renamed or deleted; give it its old title"
        ),
        _ => format!("Google refused what was asked of the spreadsheet {spreadsheet} ({status}: {words})"),
    }
}

/// Time may heal it.
pub(super) fn outage(message: String, retry_after: Option<Duration>) -> SinkError {
    SinkError::Outage { message, retry_after }
}

/// The connection failed: nobody knows whether the call was carried out.
pub(super) fn broken(what: &str, error: &(dyn StdError + 'static), timed_out: bool) -> SinkError {
    if timed_out {
        return outage(format!("{what} did not answer in time"), None);
    }
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        text = format!("{text}: {error}");
        source = error.source();
    }
    outage(format!("cannot reach {what}: {text}"), None)
}

/// Google's own words in the body of an error, in one line.
pub(super) fn words_of(body: &[u8]) -> String {
    let parsed: Value = serde_json::from_slice(body).unwrap_or_default();
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let words = text(&parsed["error"]["message"])
        .or_else(|| {
            let kind = text(&parsed["error"])?;
            let description = text(&parsed["error_description"]);
            Some(description.map_or(kind.clone(), |description| format!("{kind}: {description}")))
        })
        .unwrap_or_else(|| "no reason given".to_owned());
    words.split_whitespace().collect::<Vec<_>>().join(" ").chars().take(WORDS_MAX).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_refusal_says_what_to_do() {
        for (status, words, want) in [
            (401, "Invalid Credentials", "make a new key"),
            (403, "The caller does not have permission", "share the spreadsheet with this address"),
            (403, "Google Sheets API has not been used in project 1", "enable the Google Sheets API"),
            (404, "Requested entity was not found.", "there is no spreadsheet 1aB"),
            (400, "Unable to parse range: 'Old'!1:1", "renamed or deleted"),
            (400, "protected cell", "(400: protected cell)"),
        ] {
            let failure = Failure::Status { status, words: words.to_owned(), retry_after: None };
            match failure.explained("me@x.iam", "1aB") {
                SinkError::Refused(text) => {
                    assert!(text.contains(want), "{text}");
                    assert!(text.contains(words), "{text}");
                }
                SinkError::Outage { message, .. } => panic!("{status} is no outage: {message}"),
            }
        }
    }

    #[test]
    fn what_time_heals_is_an_outage() {
        for status in [408, 429, 500, 502, 503, 504] {
            let retry_after = Some(Duration::from_secs(7));
            let failure = Failure::Status { status, words: "busy".to_owned(), retry_after };
            match failure.explained("me@x.iam", "1aB") {
                SinkError::Outage { message, retry_after: told } => {
                    assert!(message.contains("busy"), "{message}");
                    assert_eq!(told, retry_after);
                }
                SinkError::Refused(text) => panic!("{status} is refused: {text}"),
            }
        }
    }

    #[test]
    fn words_are_found_in_both_kinds_of_bodies() {
        assert_eq!(words_of(br#"{"error":{"code":403,"message":"not\nallowed"}}"#), "not allowed");
        assert_eq!(
            words_of(br#"{"error":"invalid_grant","error_description":"Bad."}"#),
            "invalid_grant: Bad."
        );
        assert_eq!(words_of(b"<html>"), "no reason given");
    }
}
