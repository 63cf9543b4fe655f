//! The demo's batch: what an OpenAI SDK does, done by hand. A file is uploaded to `longhaul up`, a batch is created, polled and read; with
//! `--crash` the server is killed as soon as it has promised the batch.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use longhaul_lab::Scratch;
use longhaul_queue::JobId;
use serde::Serialize;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::Child;

use super::{LOOK_EVERY, STANDSTILL_MAX};
use crate::app::App;

const LOG: &str = "server.log";
/// Between the parts of the form.
const BOUNDARY: &str = "longhaul-demo";
/// Time for an answer of the server.
const ANSWER_WAIT: Duration = Duration::from_secs(10);

/// What came of the batch.
#[derive(Debug, Serialize)]
pub(super) struct Batched {
    requests: u64,
    answers: u64,
    /// Names that came back.
    names: u64,
    kills: u64,
}

impl Batched {
    /// Each request was answered once.
    pub(super) fn is_right(&self) -> bool {
        (self.answers, self.names) == (self.requests, self.requests)
    }

    /// In a line.
    pub(super) fn line(&self) -> String {
        let kills = if self.kills > 0 { ", its server killed once" } else { "" };
        format!(
            "a batch over HTTP, as OpenAI's SDK sends it{kills}: {} requests, {} answers, {} names\n",
            self.requests, self.answers, self.names
        )
    }
}

/// Hands in a batch, reads its answers and deletes it.
pub(super) async fn run(app: &App, scratch: &Scratch, requests: u64, crash: bool) -> Result<Batched> {
    let (mut server, base) = start(scratch, 0).await?;
    app.out.note(format_args!(
        "{requests} requests as a batch to longhaul up at {base}, as an OpenAI SDK sends them"
    ));
    let port = base.rsplit(':').next().and_then(|port| port.parse().ok()).context("the server's port")?;
    let client = Client::new(&base)?;
    let batch = client.hand_in(requests).await?;
    if crash {
        server.kill().await.context("killing the server")?;
        app.out.note("killed the server with SIGKILL right after it took the batch, and started it again");
        (server, _) = start(scratch, port).await?;
    }
    let batch = client.ended(&batch).await?;
    let output = client.text(&format!("/v1/files/{}/content", name(&batch, "output_file_id")?)).await?;
    let names = output.lines().map(|line| Ok(name(&serde_json::from_str(line)?, "custom_id")?.to_owned()));
    let names = names.collect::<Result<Vec<String>>>()?;
    let distinct: BTreeSet<&String> = names.iter().collect();
    let batched = Batched {
        requests,
        answers: names.len() as u64,
        names: distinct.len() as u64,
        kills: u64::from(crash),
    };
    client.delete(&format!("/v1/files/{}", name(&batch, "output_file_id")?)).await?;
    server.kill().await.context("ending the server")?;
    let id: JobId = name(&batch, "id")?.trim_start_matches("batch_").parse()?;
    scratch.queue().consume(vec![id]).await?;
    Ok(batched)
}

/// Starts the server; its first line is its address.
async fn start(scratch: &Scratch, port: u16) -> Result<(Child, String)> {
    let port = port.to_string();
    // One by one, and a short lease: nobody wants to wait for a day in a demo.
    let settings = [("LONGHAUL_SERVER__BATCHES", "sync"), ("LONGHAUL_WORKER__LEASE", "1s")];
    let args = ["-q", "--profile", "sim", "up", "--port", &port];
    let mut server = scratch.spawn_with(&args, LOG, &settings)?;
    let stdout = server.stdout.take().context("the server's output")?;
    let line = BufReader::new(stdout).lines().next_line().await.context("reading the server's address")?;
    match line {
        Some(base) if base.starts_with("http") => Ok((server, base)),
        _ => bail!("the server did not start; see {}", scratch.path(LOG).display()),
    }
}

/// Who hands in the batch.
struct Client {
    http: longhaul_llm::HttpClient,
    base: String,
}

impl Client {
    fn new(base: &str) -> Result<Self> {
        Ok(Self { http: longhaul_llm::plain_client(base, ANSWER_WAIT)?, base: base.to_owned() })
    }

    /// Uploads the file and creates the batch; its name.
    async fn hand_in(&self, requests: u64) -> Result<String> {
        let line = |number: u64| {
            let messages = json!([{ "role": "user", "content": format!("Greet guest {number}") }]);
            let body = json!({ "model": "sim-small", "messages": messages });
            json!({ "custom_id": format!("guest-{number}"), "method": "POST", "url": "/v1/chat/completions", "body": body })
        };
        let lines: String = (0..requests).map(|number| line(number).to_string() + "\n").collect();
        let part = |about: &str, content: &str| {
            format!("--{BOUNDARY}\r\nContent-Disposition: form-data; {about}\r\n\r\n{content}\r\n")
        };
        let form = part("name=\"purpose\"", "batch")
            + &part("name=\"file\"; filename=\"guests.jsonl\"", &lines)
            + &format!("--{BOUNDARY}--\r\n");
        let file = self.post("/v1/files", &format!("multipart/form-data; boundary={BOUNDARY}"), form).await?;
        let new = json!({
            "input_file_id": name(&file, "id")?, "endpoint": "/v1/chat/completions", "completion_window": "24h",
        });
        let batch = self.post("/v1/batches", "application/json", new.to_string()).await?;
        Ok(name(&batch, "id")?.to_owned())
    }

    async fn ended(&self, batch: &str) -> Result<Value> {
        let started = Instant::now();
        loop {
            let batch: Value = serde_json::from_str(&self.text(&format!("/v1/batches/{batch}")).await?)?;
            match name(&batch, "status")? {
                "completed" => return Ok(batch),
                "failed" | "expired" | "cancelled" => bail!("the batch ended as {}", batch["status"]),
                _ if started.elapsed() > STANDSTILL_MAX => bail!("the batch does not end: {batch}"),
                _ => tokio::time::sleep(LOOK_EVERY).await,
            }
        }
    }

    async fn post(&self, path: &str, kind: &str, body: String) -> Result<Value> {
        let request = self.http.post(format!("{}{path}", self.base)).header("content-type", kind);
        let answer = request.header("authorization", "Bearer any").body(body).send().await?;
        let text = answer.error_for_status()?.text().await?;
        Ok(serde_json::from_str(&text)?)
    }

    async fn delete(&self, path: &str) -> Result<()> {
        let request = self.http.delete(format!("{}{path}", self.base)).header("authorization", "Bearer any");
        request.send().await?.error_for_status()?;
        Ok(())
    }

    async fn text(&self, path: &str) -> Result<String> {
        Ok(self.http.get(format!("{}{path}", self.base)).send().await?.error_for_status()?.text().await?)
    }
}

fn name<'a>(value: &'a Value, field: &str) -> Result<&'a str> {
    value[field].as_str().with_context(|| format!("the server told no {field}: {value}"))
}
