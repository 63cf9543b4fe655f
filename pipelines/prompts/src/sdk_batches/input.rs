//! The input of a batch: a request a line. Checked as a whole before anything is sent. What makes a file no batch ends the batch,
//! with every fault named by its line, as OpenAI does it: lines that are no JSON, names that are missing or used twice, another
//! endpoint, models of several providers. A body that cannot be asked is the error of its own line, and the others run.

use std::collections::HashSet;
use std::io::{self, BufRead};
use std::path::{Path, PathBuf};

use longhaul_llm::Catalog;
use longhaul_llm::catalog::Chosen;
use longhaul_llm::types::{Dialect, Endpoint};
use longhaul_llm::wire::{anthropic, openai, responses};
use longhaul_pipeline::json_check;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::sync::mpsc;

use super::Form;
use crate::NewRequest;

/// Most requests in a batch.
pub const REQUESTS_MAX: u64 = 1_000_000;
/// Longest line.
pub const LINE_BYTES_MAX: usize = 10_000_000;
/// Faults that are told; more say nothing new.
pub const FAULTS_MAX: usize = 100;
/// Requests read ahead while others are stored.
const READ_AHEAD: usize = 1_000;
/// Longest name that a client gives a request.
const CUSTOM_ID_BYTES_MAX: usize = 512;

/// Responses are asked as chats.
pub(super) const RESPONSES: &str = "/v1/responses";

/// A line that cannot be run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LineFault {
    /// A word for programs.
    pub code: String,
    /// Counted from 1; absent when it concerns the whole file.
    pub line: Option<u64>,
    /// What is wrong.
    pub message: String,
    /// The field.
    pub param: Option<String>,
}

impl LineFault {
    fn new(code: &str, line: Option<u64>, message: impl Into<String>, param: Option<&str>) -> Self {
        Self { code: code.to_owned(), line, message: message.into(), param: param.map(str::to_owned) }
    }
}

/// What a file asks for, when all of it can be run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Summary {
    /// How many requests.
    pub requests: u64,
    /// The provider that answers them, and the model of the first.
    pub chosen: Chosen,
    /// The first line whose body cannot be asked, and which will end as an error.
    pub refused: Option<LineFault>,
}

/// How lines are read.
#[derive(Debug, Clone, Copy)]
pub struct Reading<'a> {
    /// Whose form they have.
    pub form: Form,
    /// What each of them asks.
    pub endpoint: &'a str,
    /// What their models mean.
    pub catalog: &'a Catalog,
}

impl Reading<'_> {
    /// Reads a whole file and tells what it asks for, or what is wrong with it.
    pub fn check(&self, path: &Path) -> io::Result<Result<Summary, Vec<LineFault>>> {
        let mut faults = Vec::new();
        let mut names = HashSet::new();
        let mut chosen: Option<Chosen> = None;
        let mut refused = None;
        let mut requests = 0;
        for (number, line) in lines(path)? {
            if faults.len() >= FAULTS_MAX {
                break;
            }
            let read = line.map_err(|error| line_error(number, &error))?;
            let (request, model) = match read.and_then(|line| self.request(number, &line)) {
                Ok(read) => read,
                Err(fault) => {
                    faults.push(fault);
                    continue;
                }
            };
            requests += 1;
            if requests > REQUESTS_MAX {
                let text = format!("a batch has at most {REQUESTS_MAX} requests");
                faults.push(LineFault::new("too_many_requests", Some(number), text, None));
                break;
            }
            if let (None, Some(why)) = (&refused, &request.refused) {
                refused = Some(LineFault::new("invalid_request", Some(number), why, None));
            }
            if let Some(name) = request.custom_id
                && !names.insert(name.clone())
            {
                let text = format!("the custom_id {name:?} is used more than once");
                faults.push(LineFault::new("duplicate_custom_id", Some(number), text, Some("custom_id")));
            }
            match &chosen {
                None => chosen = Some(model),
                Some(first) if first.profile != model.profile => {
                    let text = format!(
                        "{} is answered by {}, the lines before by {}: a batch has one provider",
                        model.model, model.profile, first.profile
                    );
                    faults.push(LineFault::new("mismatched_model", Some(number), text, Some("body.model")));
                }
                Some(_) => {}
            }
        }
        Ok(match chosen {
            Some(chosen) if faults.is_empty() => Ok(Summary { requests, chosen, refused }),
            _ if faults.is_empty() => {
                Err(vec![LineFault::new("empty_file", None, "the file has no requests", None)])
            }
            _ => Err(faults),
        })
    }

    /// The requests of a file that was checked.
    pub fn requests(&self, path: &Path) -> io::Result<impl Iterator<Item = io::Result<NewRequest>>> {
        let reading = *self;
        let changed = |fault: LineFault| io::Error::other(format!("the file has changed: {}", fault.message));
        Ok(lines(path)?.map(move |(number, line)| {
            let line = line?.map_err(changed)?;
            reading.request(number, &line).map(|(request, _)| request).map_err(changed)
        }))
    }

    /// One line, and the model that is to answer it.
    fn request(&self, number: u64, line: &str) -> Result<(NewRequest, Chosen), LineFault> {
        let fault = |code: &str, message: String, param: Option<&str>| {
            LineFault::new(code, Some(number), message, param)
        };
        let value: Value = json_check::check(line.as_bytes())
            .and_then(|()| serde_json::from_str(line))
            .map_err(|error| fault("invalid_json_line", format!("this line is no JSON: {error}"), None))?;
        let Value::Object(mut value) = value else {
            return Err(fault("invalid_json_line", "this line is no JSON object".to_owned(), None));
        };
        let custom_id = match value.get("custom_id").and_then(Value::as_str) {
            Some(id) if !id.is_empty() && id.len() <= CUSTOM_ID_BYTES_MAX => id.to_owned(),
            Some(_) => {
                let text = format!("custom_id has 1 to {CUSTOM_ID_BYTES_MAX} bytes");
                return Err(fault("invalid_custom_id", text, Some("custom_id")));
            }
            None => {
                let text = "custom_id is missing: a text that names the request".to_owned();
                return Err(fault("missing_required_parameter", text, Some("custom_id")));
            }
        };
        let (body_name, mut body) = match self.form {
            Form::OpenAi => (
                "body",
                self.openai_body(&mut value).map_err(|(code, text, param)| fault(code, text, Some(param)))?,
            ),
            Form::Anthropic => ("params", value.shift_remove("params").unwrap_or_default()),
        };
        if !body.is_object() {
            let text = format!("{body_name} is missing or no object");
            return Err(fault("missing_required_parameter", text, Some(body_name)));
        }
        let model_at = format!("{body_name}.model");
        let model = body.get("model").and_then(Value::as_str).unwrap_or_default();
        let chosen = self
            .catalog
            .resolve(model)
            .map_err(|error| fault(error.code(), error.to_string(), Some(&model_at)))?;
        body["model"] = Value::from(chosen.model.clone());
        let dialect = match self.form {
            Form::OpenAi => Dialect::OpenAi,
            Form::Anthropic => Dialect::Anthropic,
        };
        let (body, refused) = match self.asked(body) {
            Ok(body) => (body, None),
            Err(why) => (Value::Null, Some(why)),
        };
        Ok((NewRequest { custom_id: Some(custom_id), body, dialect, refused }, chosen))
    }

    fn openai_body(
        &self,
        line: &mut serde_json::Map<String, Value>,
    ) -> Result<Value, (&'static str, String, &'static str)> {
        if let Some(method) = line.get("method")
            && method.as_str() != Some("POST")
        {
            return Err((
                "invalid_method",
                format!("method is {method}, and only POST is possible"),
                "method",
            ));
        }
        let url = line.get("url").and_then(Value::as_str).unwrap_or_default();
        if url != self.endpoint {
            let text = format!("url is {url:?}, but the batch was created for {:?}", self.endpoint);
            return Err(("mismatched_endpoint", text, "url"));
        }
        Ok(line.shift_remove("body").unwrap_or_default())
    }

    /// The body as runs store it, checked by reading it, or why it cannot be asked.
    fn asked(&self, body: Value) -> Result<Value, String> {
        if body.get("stream").and_then(Value::as_bool) == Some(true) {
            return Err("stream: a batch cannot stream; leave stream out".to_owned());
        }
        let body = match self.endpoint {
            RESPONSES => responses::chat_of_line(body).map_err(|error| error.text)?,
            _ => body,
        };
        let read = match self.form {
            Form::OpenAi if self.endpoint == Endpoint::Embeddings.url() => {
                openai::embed_request_from_json(body.clone()).map(drop)
            }
            Form::OpenAi => openai::request_from_json(body.clone()).map(drop),
            Form::Anthropic => anthropic::request_from_json(body.clone()).map(drop),
        };
        read.map(|()| body).map_err(|error| error.message)
    }
}

/// Requests of a file, read on a thread of its own.
pub fn read_ahead(
    catalog: &Catalog,
    form: Form,
    endpoint: &str,
    path: PathBuf,
) -> mpsc::Receiver<io::Result<NewRequest>> {
    let (sender, receiver) = mpsc::channel(READ_AHEAD);
    let (catalog, endpoint) = (catalog.clone(), endpoint.to_owned());
    tokio::task::spawn_blocking(move || {
        let reading = Reading { form, endpoint: &endpoint, catalog: &catalog };
        let requests = match reading.requests(&path) {
            Ok(requests) => requests,
            Err(error) => return drop(sender.blocking_send(Err(error))),
        };
        for request in requests {
            // Nobody listens any more: the worker gave the job back.
            if sender.blocking_send(request).is_err() {
                return;
            }
        }
    });
    receiver
}

fn line_error(number: u64, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("reading line {number}: {error}"))
}

/// A line, why it is none, or why the file cannot be read.
type Line = io::Result<Result<String, LineFault>>;

/// The lines of a file that are not empty, each with its number and within its bound.
fn lines(path: &Path) -> io::Result<impl Iterator<Item = (u64, Line)>> {
    let mut reader = io::BufReader::with_capacity(256 * 1024, std::fs::File::open(path)?);
    let mut number = 0;
    Ok(std::iter::from_fn(move || {
        loop {
            number += 1;
            let mut line = Vec::new();
            let mut bounded = io::Read::take(&mut reader, LINE_BYTES_MAX as u64 + 1);
            match bounded.read_until(b'\n', &mut line) {
                Ok(0) => return None,
                Ok(_) if line.len() > LINE_BYTES_MAX => {
                    let text = format!("the line is longer than {LINE_BYTES_MAX} bytes");
                    // The rest of it is not worth reading: the file is refused.
                    return Some((
                        number,
                        Ok(Err(LineFault::new("line_too_long", Some(number), text, None))),
                    ));
                }
                Ok(_) if line.trim_ascii().is_empty() => {}
                Ok(_) => {
                    let no_text = |_| {
                        LineFault::new("invalid_json_line", Some(number), "the line is no UTF-8 text", None)
                    };
                    return Some((number, Ok(String::from_utf8(line).map_err(no_text))));
                }
                Err(error) => return Some((number, Err(error))),
            }
        }
    }))
}
