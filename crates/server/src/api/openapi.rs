//! The description of `/api/v1` for programs: OpenAPI 3.1, made from the handlers themselves, with the bounds that they check by hand; and
//! of `/v1`, by its calls.

use axum::extract::State as Shared;
use axum::http::header;
use axum::response::IntoResponse;
use longhaul_pipeline::OwnNames;
use serde::Serialize;
use utoipa::openapi::path::Operation;
use utoipa::openapi::{ContentBuilder, OpenApi, RefOr, ResponseBuilder};
use utoipa::{OpenApi as _, ToSchema};

use crate::ctx::Ctx;

pub(crate) mod bounds;
mod compatible;

/// What holds for all of it.
#[derive(utoipa::OpenApi)]
#[openapi(
    info(
        title = "Longhaul",
        description = "Durable jobs, runs of prompts and scored tables. Times are milliseconds since the Unix epoch, UTC. Errors are problem+json \
                       (RFC 9457) with a `code` for programs and, where one is wrong, a `field`. Where a token is needed, send it \
                       as `Authorization: Bearer TOKEN`.",
        version = "1",
        license(name = "MIT OR Apache-2.0", identifier = "MIT OR Apache-2.0")
    ),
    components(schemas(ProblemOut)),
    tags(
        (name = "jobs", description = "Units of work, one by one or by filter."),
        (name = "processes", description = "Groups of jobs of one caller, with results in submission order."),
        (name = "queues", description = "Lanes of jobs."),
        (name = "schedules", description = "Jobs that recur."),
        (name = "workers", description = "Processes that run jobs."),
        (name = "work", description = "For workers in any language. Every write carries the lease, and a stale one changes nothing."),
        (name = "runs", description = "Durable pieces of work of every pipeline: looked at and steered."),
        (name = "prompts", description = "Many prompts, each answered once, in order: a run."),
        (name = "sheets", description = "Tables whose texts are scored, cell by cell: a run each. Rows and chunks count from 1; a table's head is a row too."),
        (name = "costs", description = "What was spent, and what would be."),
        (name = "events", description = "What changes, as it changes."),
        (name = "webhooks", description = "Signed notifications about runs, batches and jobs, repeated until they are delivered."),
    )
)]
struct About;

/// Why a request was refused.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Problem)]
struct ProblemOut {
    /// `urn:longhaul:problem:CODE`.
    r#type: String,
    /// The status in words.
    title: String,
    /// The status.
    status: u16,
    /// A word for programs, which never changes.
    code: String,
    /// What is wrong and what to do about it.
    detail: String,
    /// The field of the request that is wrong.
    field: Option<String>,
}

/// What holds for all of it, without routes.
pub(super) fn about() -> OpenApi {
    About::openapi()
}

/// The whole description as it is served and printed.
pub(crate) fn text(names: &OwnNames) -> String {
    let (_, mut api) = super::described().split_for_parts();
    for item in api.paths.paths.values_mut() {
        let operations = [&mut item.get, &mut item.put, &mut item.post, &mut item.delete, &mut item.patch];
        operations.into_iter().flatten().for_each(can_fail);
    }
    let mut api = serde_json::to_value(&api).unwrap_or_default();
    bounds::add(&mut api, names);
    compatible::add(&mut api);
    let mut text = serde_json::to_string_pretty(&api).unwrap_or_default();
    text.push('\n');
    text
}

/// Every operation can be refused, always in the same form.
fn can_fail(operation: &mut Operation) {
    let content = ContentBuilder::new()
        .schema(Some(RefOr::Ref(utoipa::openapi::Ref::from_schema_name("Problem"))))
        .build();
    let response =
        ResponseBuilder::new().description("Refused").content("application/problem+json", content).build();
    operation.responses.responses.insert("default".to_owned(), RefOr::T(response));
}

/// `/openapi.json`.
pub(super) async fn show(Shared(ctx): Shared<Ctx>) -> impl IntoResponse {
    ([(header::CONTENT_TYPE, "application/json")], text(&ctx.names))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Those of a program with every pipeline.
    pub(crate) fn names() -> OwnNames {
        OwnNames::new(vec![&longhaul_prompts::ABOUT, &longhaul_sheets::ABOUT])
    }

    #[test]
    fn every_bound_is_of_a_field_that_there_is() {
        let (_, api) = crate::api::described().split_for_parts();
        let api = serde_json::to_value(&api).expect("JSON");
        assert_eq!(bounds::stale(&api, &names()), Vec::<String>::new());
    }
}
