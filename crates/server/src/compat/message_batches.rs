//! `/v1/messages/batches`, as Anthropic's clients know it. Requests come in the body, which streams to disk and is taken apart there.

use std::cell::Cell;
use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read};
use std::path::Path as FilePath;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{DefaultBodyLimit, Path, Query, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use axum::routing::{get, post};
use axum::{Extension, Json, Router};
use longhaul_llm::wire::{BatchCounts, BatchObject, anthropic};
use longhaul_pipeline::job_name::{id_of, name_of};
use longhaul_pipeline::private_file;
use longhaul_pipeline::uploads::NewFile;
use longhaul_prompts::sdk_batches::input::{LINE_BYTES_MAX, Reading};
use longhaul_prompts::sdk_batches::output::Which;
use longhaul_prompts::sdk_batches::{Batch, BatchPayload, Form, Newer};
use longhaul_queue::{JobId, Timestamp};
use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer as _, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::reading::{new_batch, page_size, text_stream};
use super::{AnthropicError, test_objects};
use crate::batches;
use crate::ctx::Ctx;
use crate::guard::Caller;
use crate::problem::Problem;

/// Largest body.
pub(super) const BODY_BYTES_MAX: u64 = 256_000_000;
/// Its window is fixed.
const WINDOW: Duration = Duration::from_secs(24 * 3600);

/// The routes.
pub(super) fn routes() -> Router<Ctx> {
    Router::new()
        .route("/v1/messages/batches", get(list).post(create))
        .route("/v1/messages/batches/{id}", get(retrieve).delete(delete))
        .route("/v1/messages/batches/{id}/cancel", post(cancel))
        .route("/v1/messages/batches/{id}/results", get(results))
        .layer(DefaultBodyLimit::disable())
}

async fn create(
    State(ctx): State<Ctx>,
    Extension(caller): Extension<Caller>,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<Value>, AnthropicError> {
    let now = ctx.queue().clock().now();
    let received = ctx.uploads.receive(BODY_BYTES_MAX, now, body.into_data_stream()).await?;
    let mut lines = ctx.uploads.new_upload(now);
    let (this, from, to) = (ctx.clone(), received.path.clone(), lines.path.clone());
    let checked = tokio::task::spawn_blocking(move || take_apart(&this, &from, &to));
    lines.bytes = checked.await.map_err(Problem::internal)??;
    let new = NewFile {
        filename: "requests.jsonl".to_owned(),
        purpose: "message_batch".to_owned(),
        expires_at: None,
        owner: caller.name.clone(),
    };
    let input_file = ctx.uploads.keep(lines, new).await?.id;
    let payload = BatchPayload {
        form: Form::Anthropic,
        endpoint: "/v1/messages".to_owned(),
        input_file: input_file.clone(),
        fingerprint: received.sha256.clone(),
        window: "24h".to_owned(),
        expires_at: now + WINDOW,
        metadata: None,
        owner: caller.name.clone(),
    };
    let created = batches::create(&ctx, new_batch(payload, &caller, &headers)).await;
    // The same call may have created it before, with a file of its own.
    if created.as_ref().is_ok_and(|batch| batch.payload.input_file != input_file) || created.is_err() {
        ctx.uploads.delete(&input_file).await.map_err(Problem::unavailable)?;
    }
    Ok(Json(batch_json(&created?)))
}

/// Writes the requests of a body a line each, and refuses a body in which one cannot be run.
fn take_apart(ctx: &Ctx, from: &FilePath, to: &FilePath) -> Result<u64, Problem> {
    let left = Cell::new(LINE_BYTES_MAX);
    let read = BufReader::new(Bounded { file: File::open(from).map_err(Problem::unavailable)?, left: &left });
    let mut write = BufWriter::new(private_file::std_options().open(to).map_err(Problem::unavailable)?);
    let mut json = serde_json::Deserializer::from_reader(read);
    let wrong = |error: serde_json::Error| match error.is_io() {
        true if left.get() == 0 => {
            Problem::invalid(format!("a request is longer than {LINE_BYTES_MAX} bytes")).at("requests")
        }
        true => Problem::unavailable(error),
        false => Problem::invalid(format!("the body is not as it should be: {error}")),
    };
    json.deserialize_map(Requests { write: &mut write, left: &left }).map_err(wrong)?;
    json.end().map_err(wrong)?;
    let file = write.into_inner().map_err(|error| Problem::unavailable(error.into_error()))?;
    file.sync_all().map_err(Problem::unavailable)?;
    let reading = Reading { form: Form::Anthropic, endpoint: "/v1/messages", catalog: &ctx.catalog };
    match reading.check(to).map_err(Problem::unavailable)? {
        Ok(_) => Ok(file.metadata().map_err(Problem::unavailable)?.len()),
        Err(faults) => Err(faults.into_iter().next().map_or_else(
            || Problem::invalid("requests: it is empty").at("requests"),
            |fault| {
                let at =
                    fault.line.map_or_else(|| "requests".to_owned(), |line| format!("requests.{}", line - 1));
                Problem::invalid(format!("{at}: {}", fault.message)).at(at)
            },
        )),
    }
}

/// The body, of which no more is read at once than one request may have: a request is held whole.
struct Bounded<'a> {
    file: File,
    left: &'a Cell<usize>,
}

impl Read for Bounded<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.left.get() == 0 {
            return Err(io::Error::other("too long"));
        }
        let count = self.file.read(buffer)?;
        self.left.set(self.left.get().saturating_sub(count));
        Ok(count)
    }
}

/// The fields of a body; only `requests` counts.
struct Requests<'a, W> {
    write: &'a mut W,
    left: &'a Cell<usize>,
}

impl<'de, W: io::Write> Visitor<'de> for Requests<'_, W> {
    type Value = ();

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("an object with a list of requests")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let mut found = false;
        while let Some(name) = map.next_key::<String>()? {
            if name == "requests" {
                map.next_value_seed(Lines { write: &mut *self.write, left: self.left })?;
                found = true;
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        if found { Ok(()) } else { Err(serde::de::Error::missing_field("requests")) }
    }
}

/// A list whose members go to a file, one by one.
struct Lines<'a, W> {
    write: &'a mut W,
    left: &'a Cell<usize>,
}

impl<'de, W: io::Write> DeserializeSeed<'de> for Lines<'_, W> {
    type Value = ();

    fn deserialize<D: serde::Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de, W: io::Write> Visitor<'de> for Lines<'_, W> {
    type Value = ();

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a list of requests")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        while let Some(request) = list.next_element::<Box<RawValue>>()? {
            // A line break between tokens is a space; within a text it is escaped.
            let line = request.get().replace(['\n', '\r'], " ");
            writeln!(self.write, "{line}").map_err(serde::de::Error::custom)?;
            self.left.set(LINE_BYTES_MAX);
        }
        Ok(())
    }
}

#[derive(Debug, Deserialize)]
struct ListQuery {
    after_id: Option<String>,
    before_id: Option<String>,
    limit: Option<i64>,
}

async fn list(
    State(ctx): State<Ctx>,
    Extension(caller): Extension<Caller>,
    Query(query): Query<ListQuery>,
) -> Result<Json<Value>, AnthropicError> {
    let limit = page_size(query.limit, 20, 1_000);
    let nothing = || Json(json!({"data": [], "has_more": false, "first_id": null, "last_id": null}));
    let from = match (&query.after_id, &query.before_id) {
        (Some(after), _) => find(&ctx, after).map(|id| Newer::Older(Some(id))),
        (None, Some(before)) => find(&ctx, before).map(Newer::Newer),
        (None, None) => Ok(Newer::Older(None)),
    };
    let Ok(from) = from else { return Ok(nothing()) };
    let page = batches::list(&ctx, &caller, Form::Anthropic, from, limit).await?;
    let data: Vec<Value> = page.items.iter().map(batch_json).collect();
    let id = |value: Option<&Value>| value.map_or(Value::Null, |value| value["id"].clone());
    let (first, last) = (id(data.first()), id(data.last()));
    Ok(Json(json!({"data": data, "has_more": page.next.is_some(), "first_id": first, "last_id": last})))
}

async fn retrieve(
    State(ctx): State<Ctx>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
) -> Result<Json<Value>, AnthropicError> {
    Ok(Json(batch_json(&batches::get(&ctx, &caller, find(&ctx, &id)?, Form::Anthropic).await?)))
}

async fn cancel(
    State(ctx): State<Ctx>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
) -> Result<Json<Value>, AnthropicError> {
    Ok(Json(batch_json(&batches::cancel(&ctx, &caller, find(&ctx, &id)?, Form::Anthropic).await?)))
}

async fn delete(
    State(ctx): State<Ctx>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
) -> Result<Json<Value>, AnthropicError> {
    if !test_objects::is_one(&ctx, &id) {
        let batch = batches::get(&ctx, &caller, find(&ctx, &id)?, Form::Anthropic).await?;
        ctx.batches.delete(&batch).await?;
    }
    Ok(Json(json!({"id": id, "type": "message_batch_deleted"})))
}

/// All lines that are there, also of a batch that goes on.
async fn results(
    State(ctx): State<Ctx>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
) -> Result<Response, AnthropicError> {
    let batch = batches::get(&ctx, &caller, find(&ctx, &id)?, Form::Anthropic).await?;
    if !ctx.batches.has_results(&batch).await? && batch.counts.total > 0 {
        return Err(Problem::new(
            StatusCode::NOT_FOUND,
            "not_found",
            "the results of this batch were deleted",
        )
        .into());
    }
    Ok(text_stream("application/x-jsonl", ctx.batches.lines(batch, Which::All)))
}

fn find(ctx: &Ctx, name: &str) -> Result<JobId, Problem> {
    let name = test_objects::real_name(ctx, name);
    id_of(&name, Form::Anthropic.prefix())
        .ok_or_else(|| Problem::not_found(format!("there is no message batch {name}")))
}

fn batch_json(batch: &Batch) -> Value {
    let seconds = |at: Timestamp| at.as_millis() / 1_000;
    let Batch { counts, kept, payload, .. } = batch;
    let mut object = BatchObject::new(name_of(batch.id, Form::Anthropic.prefix()), seconds(batch.created_at));
    let expired = kept.expired_at.is_some();
    object.state = batch.state;
    object.expires_at_s = Some(seconds(payload.expires_at));
    object.cancel_at_s = kept.cancelling_at.map(seconds);
    object.ended_at_s = batch.ended_at.map(seconds);
    object.requests = Some(counts.total);
    object.counts = Some(BatchCounts {
        completed: counts.completed,
        failed: counts.failed,
        cancelled: if expired { 0 } else { counts.not_run },
        expired: if expired { counts.not_run } else { 0 },
    });
    anthropic::batch_to_json(&object)
}
