//! Objects under fixed names, for the test suites of SDKs: they ask for `batch_id` or `file_id` as if it were there. Only with
//! `--seed-test-objects`.

use std::borrow::Cow;
use std::time::Duration;

use axum::http::StatusCode;
use bytes::Bytes;
use longhaul_pipeline::job_name::name_of;
use longhaul_pipeline::uploads::NewFile;
use longhaul_prompts::sdk_batches::{BatchPayload, Form, NewBatch};

use crate::batches;
use crate::ctx::Ctx;
use crate::problem::Problem;

/// The real names behind the fixed ones.
#[derive(Debug)]
pub(crate) struct TestObjects {
    file: String,
    batch: String,
    message_batch: String,
}

const LINES: [(Form, &str, &str); 2] = [
    (
        Form::OpenAi,
        "/v1/chat/completions",
        r#"{"custom_id":"1","method":"POST","url":"/v1/chat/completions","body":{"model":"sim-small","messages":[{"role":"user","content":"Hello"}]}}"#,
    ),
    (
        Form::Anthropic,
        "/v1/messages",
        r#"{"custom_id":"1","params":{"model":"sim-small","max_tokens":16,"messages":[{"role":"user","content":"Hello"}]}}"#,
    ),
];

/// Makes them.
pub(crate) async fn seed(ctx: &Ctx) -> Result<(), Problem> {
    let mut names = Vec::new();
    for (form, endpoint, line) in LINES {
        let now = ctx.queue().clock().now();
        let content =
            futures_util::stream::iter([Ok::<_, std::io::Error>(Bytes::from_static(line.as_bytes()))]);
        let upload = ctx.uploads.receive(u64::MAX, now, content).await?;
        let new =
            NewFile { filename: "test.jsonl".to_owned(), purpose: "batch".to_owned(), ..NewFile::default() };
        let input_file = ctx.uploads.keep(upload, new).await?.id;
        let payload = BatchPayload {
            form,
            endpoint: endpoint.to_owned(),
            input_file: input_file.clone(),
            fingerprint: input_file.clone(),
            window: "24h".to_owned(),
            expires_at: now + Duration::from_secs(24 * 3600),
            metadata: None,
            owner: None,
        };
        let new = NewBatch { payload, idempotency_key: None, is_repeated: false, trace: None };
        names.push((input_file, batches::create(ctx, new).await?.id));
    }
    let [(file, batch), (_, message_batch)] = names.as_slice() else {
        return Err(Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", "two batches were seeded"));
    };
    let objects = TestObjects {
        file: file.clone(),
        batch: name_of(*batch, Form::OpenAi.prefix()),
        message_batch: name_of(*message_batch, Form::Anthropic.prefix()),
    };
    let _ = ctx.test_objects.set(objects);
    Ok(())
}

/// Whether a name is a fixed one: then it cannot be deleted.
pub(crate) fn is_one(ctx: &Ctx, name: &str) -> bool {
    ctx.test_objects.get().is_some_and(|objects| objects.real(name).is_some())
}

/// The real name of an object.
pub(crate) fn real_name<'a>(ctx: &'a Ctx, name: &'a str) -> Cow<'a, str> {
    let real = ctx.test_objects.get().and_then(|objects| objects.real(name));
    Cow::Borrowed(real.unwrap_or(name))
}

impl TestObjects {
    fn real(&self, name: &str) -> Option<&str> {
        match name {
            "file_id" | "input_file_id" => Some(&self.file),
            "batch_id" => Some(&self.batch),
            "message_batch_id" => Some(&self.message_batch),
            _ => None,
        }
    }
}
