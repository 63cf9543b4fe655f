//! Every form as a table: content, and what becomes of it. Nasty content is refused with its line.

use std::io::Write as _;

use serde_json::json;

use super::*;
use crate::exit::{code_of, hint_of};

mod forms;
mod nasty;

const LINE_BYTES_MAX: usize = 1_000_000;

/// A file with this name and content, read with these options.
struct Input<'a> {
    name: &'a str,
    content: &'a [u8],
    format: Format,
    template: Option<&'a str>,
    endpoint: Endpoint,
}

fn input<'a>(name: &'a str, content: &'a (impl AsRef<[u8]> + ?Sized)) -> Input<'a> {
    Input { name, content: content.as_ref(), format: Format::Auto, template: None, endpoint: Endpoint::Chat }
}

impl<'a> Input<'a> {
    fn template(mut self, template: &'a str) -> Self {
        self.template = Some(template);
        self
    }

    fn format(mut self, format: Format) -> Self {
        self.format = format;
        self
    }

    fn embed(mut self) -> Self {
        self.endpoint = Endpoint::Embeddings;
        self
    }

    fn open(&self) -> Result<PromptFile> {
        let template = self.template.map(|text| text.parse().expect("a template"));
        let options = Options {
            format: self.format,
            template,
            endpoint: self.endpoint,
            sheet: None,
            line_bytes_max: LINE_BYTES_MAX,
        };
        if self.name == "-" {
            let source = Source::spool("stdin", self.content)?;
            let shape = detect::shape(Path::new("-"), &source, &options)?;
            return Ok(PromptFile { source, shape, options, pick: Pick::default() });
        }
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join(self.name);
        std::fs::write(&path, self.content).expect("a file");
        // The open file outlives its folder.
        PromptFile::open(&path, options)
    }

    fn read(&self) -> Result<(Summary, Vec<PromptLine>)> {
        let prompts = self.open()?;
        let summary = prompts.check()?;
        let lines = prompts.lines()?.collect::<Result<Vec<_>>>()?;
        assert_eq!(summary.prompts, lines.len() as u64);
        Ok((summary, lines))
    }

    fn ok(&self) -> (Summary, Vec<PromptLine>) {
        self.read().unwrap_or_else(|error| panic!("{}: {error:#}", self.name))
    }

    /// The last user text of each line.
    fn texts(&self) -> Vec<String> {
        let texts = self.ok().1.into_iter().map(|line| {
            let content =
                line.body["messages"].as_array().and_then(|all| all.last()?.get("content")?.as_str());
            content.unwrap_or_default().to_owned()
        });
        texts.collect()
    }

    /// The refusal without the folder's name.
    fn refused(&self) -> String {
        let error = self.read().expect_err("refused");
        assert!(hint_of(&error).is_some(), "no hint: {error:#}");
        let text = format!("{error:#}");
        match text.find(self.name).filter(|_| self.name != "-") {
            Some(at) => text[at..].to_owned(),
            None => text,
        }
    }
}

#[test]
fn many_lines_are_read_one_at_a_time() {
    let mut content = Vec::new();
    for number in 0..50_000 {
        writeln!(content, "{{\"id\":{number},\"prompt\":\"p\"}}").expect("memory");
    }
    let prompts = input("-", &content).open().expect("prompts");
    let summary = prompts.check().expect("valid");
    assert_eq!((summary.prompts, summary.bytes), (50_000, content.len() as u64));
    let mut lines = prompts.lines().expect("lines");
    assert_eq!(lines.next().expect("a line").expect("valid").custom_id.as_deref(), Some("0"));
    assert_eq!(lines.count(), 49_999);
}

#[test]
fn the_digest_is_that_of_the_whole_content() {
    // sha256sum of these bytes, mark and all.
    let (summary, lines) = input("a.txt", "\u{feff}one\r\n\r\ntwo").ok();
    assert_eq!(summary.sha256, "98d0b8abd846b351bdd490f4da1f03e4984e0ad2c22f425f9849e350293fc775");
    assert_eq!(summary.bytes, 13);
    assert_eq!(lines.iter().map(|line| line.line).collect::<Vec<_>>(), [1, 3]);
    assert_eq!(lines[0].body, json!({"messages": [{"role": "user", "content": "one"}]}));
}

#[test]
fn a_file_that_is_written_to_is_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("a.txt");
    std::fs::write(&path, "one\ntwo\n").expect("a file");
    let options = Options { line_bytes_max: LINE_BYTES_MAX, ..Options::default() };
    let prompts = PromptFile::open(&path, options).expect("prompts");
    prompts.check().expect("valid");
    let mut file = std::fs::OpenOptions::new().append(true).open(&path).expect("the file");
    file.write_all(b"three\n").expect("written");
    let last = prompts.lines().expect("lines").last().expect("a line");
    assert!(last.expect_err("changed").to_string().ends_with("a.txt was changed while it was read"));
}

#[test]
fn a_missing_file_matches_nothing_and_an_empty_one_is_wrong_usage() {
    let options = Options { line_bytes_max: LINE_BYTES_MAX, ..Options::default() };
    let error = PromptFile::open(Path::new("no/such/file.jsonl"), options).expect_err("missing");
    assert_eq!(code_of(&error), Code::NothingMatched);
    for (name, content) in
        [("a.txt", "\n \n"), ("a.jsonl", ""), ("a.csv", "prompt\n"), ("b.csv", ""), ("-", "")]
    {
        let error = input(name, content).read().expect_err("empty");
        assert_eq!(code_of(&error), Code::Usage, "{name}: {error:#}");
    }
}
