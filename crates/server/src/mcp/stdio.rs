//! MCP over stdin and stdout: one message a line. Calls run side by side, so that one that waits holds up no other. The end of the
//! input is the sign to end: waits return, what is being answered is answered.

use std::collections::HashMap;
use std::io;

use serde_json::{Value, json};
use tokio::io::{
    AsyncBufRead, AsyncBufReadExt as _, AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _,
    BufReader,
};
use tokio::sync::mpsc;
use tokio::task::{AbortHandle, JoinSet};

use super::Access;
use super::rpc::{self, Message, Request, RpcError};
use super::tools::Tool;
use crate::ctx::Ctx;
use crate::tokens::Scope;

/// Calls under way at once; further ones wait unread.
const CALLS_MAX: usize = 64;
/// Answers that wait to be written.
const ANSWERS_MAX: usize = 64;

/// Serves until the input ends or nobody reads the output any more.
pub async fn serve(
    ctx: Ctx,
    access: Access,
    input: impl AsyncRead + Unpin,
    output: impl AsyncWrite + Unpin + Send + 'static,
) -> io::Result<()> {
    let (answers, written) = mpsc::channel(ANSWERS_MAX);
    let mut writing = tokio::spawn(write(output, written));
    let mut serving = Serving { ctx, access, answers, calls: JoinSet::new(), waits: HashMap::new() };
    let mut lines = BufReader::new(input);
    let ended = tokio::select! {
        ended = serving.read(&mut lines) => ended,
        // Only a broken output ends it before the input does.
        written = &mut writing => return written.map_err(io::Error::other)?,
    };
    serving.end().await;
    writing.await.map_err(io::Error::other)??;
    ended
}

struct Serving {
    ctx: Ctx,
    access: Access,
    answers: mpsc::Sender<Value>,
    calls: JoinSet<String>,
    /// Calls that may be broken off, by the text of their id. What writes is carried through.
    waits: HashMap<String, AbortHandle>,
}

impl Serving {
    async fn read(&mut self, lines: &mut (impl AsyncBufRead + Unpin)) -> io::Result<()> {
        let max = self.ctx.options.json_bytes_max;
        loop {
            match line(lines, max).await? {
                Line::End => return Ok(()),
                Line::TooLong => {
                    let text = format!("a message has at most {max} bytes");
                    self.tell(RpcError::new(RpcError::INVALID_REQUEST, text).answer(&Value::Null)).await;
                }
                Line::Text(text) if text.trim_ascii().is_empty() => {}
                Line::Text(text) => self.receive(&text).await,
            }
        }
    }

    async fn receive(&mut self, text: &[u8]) {
        match rpc::parse(text) {
            Ok(Message::Request(request)) => self.start(request).await,
            Ok(Message::Notification { method, params }) => {
                if method == "notifications/cancelled"
                    && let Some(call) =
                        params.get("requestId").and_then(|id| self.waits.remove(&id.to_string()))
                {
                    call.abort();
                }
            }
            Ok(Message::Response) => {}
            Err(error) => self.tell(error.answer(&Value::Null)).await,
        }
    }

    async fn start(&mut self, request: Request) {
        while self.calls.len() >= CALLS_MAX {
            self.one_ended().await;
        }
        while let Some(ended) = self.calls.try_join_next() {
            self.forget(ended);
        }
        let id = request.id.to_string();
        let only_looks = request.tool().and_then(Tool::named).is_none_or(|tool| tool.needs() == Scope::Read);
        let (ctx, access, answers, name) =
            (self.ctx.clone(), self.access.clone(), self.answers.clone(), id.clone());
        let call = self.calls.spawn(async move {
            let answer = match rpc::answer(&ctx, &access, &request).await {
                Ok(result) => json!({ "jsonrpc": "2.0", "id": request.id, "result": result }),
                Err(error) => error.answer(&request.id),
            };
            // Nobody reads any more: then nobody waits for it either.
            let _ = answers.send(answer).await;
            name
        });
        if only_looks {
            self.waits.insert(id, call);
        }
    }

    async fn one_ended(&mut self) {
        if let Some(ended) = self.calls.join_next().await {
            self.forget(ended);
        }
    }

    fn forget(&mut self, ended: Result<String, tokio::task::JoinError>) {
        match ended {
            Ok(id) => drop(self.waits.remove(&id)),
            Err(error) if error.is_cancelled() => {}
            Err(error) => tracing::error!(%error, "a call panicked"),
        }
    }

    async fn tell(&self, answer: Value) {
        let _ = self.answers.send(answer).await;
    }

    async fn end(mut self) {
        self.ctx.draining.send_replace(true);
        while !self.calls.is_empty() {
            self.one_ended().await;
        }
    }
}

async fn write(mut output: impl AsyncWrite + Unpin, mut answers: mpsc::Receiver<Value>) -> io::Result<()> {
    while let Some(answer) = answers.recv().await {
        // JSON has no line breaks of its own: those in texts are escaped.
        let mut line = answer.to_string();
        line.push('\n');
        output.write_all(line.as_bytes()).await?;
        output.flush().await?;
    }
    Ok(())
}

enum Line {
    Text(Vec<u8>),
    TooLong,
    End,
}

/// The next line within its bound. The rest of a longer one is read and dropped, so that the next line is a message again.
async fn line(lines: &mut (impl AsyncBufRead + Unpin), max: usize) -> io::Result<Line> {
    let mut text = Vec::new();
    let read = (&mut *lines).take(max as u64 + 1).read_until(b'\n', &mut text).await?;
    if read == 0 {
        return Ok(Line::End);
    }
    if text.len() <= max || text.ends_with(b"\n") {
        return Ok(Line::Text(text));
    }
    loop {
        let rest = lines.fill_buf().await?;
        let (dropped, ended) = match rest.iter().position(|byte| *byte == b'\n') {
            Some(at) => (at + 1, true),
            None => (rest.len(), rest.is_empty()),
        };
        lines.consume(dropped);
        if ended {
            return Ok(Line::TooLong);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_line_that_is_too_long_costs_no_more_than_itself() {
        let mut lines = BufReader::with_capacity(4, &b"one\n0123456789\ntwo\nlast"[..]);
        let mut seen = Vec::new();
        loop {
            match line(&mut lines, 5).await.expect("a line") {
                Line::Text(text) => seen.push(String::from_utf8(text).expect("text")),
                Line::TooLong => seen.push("too long".to_owned()),
                Line::End => break,
            }
        }
        assert_eq!(seen, ["one\n", "too long", "two\n", "last"]);
    }
}
