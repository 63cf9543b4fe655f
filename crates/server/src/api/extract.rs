//! From a request to typed values. What does not fit is told by the name of its field: 400 for what cannot be read at all, 422
//! for what can be read but is not what was asked for.

use axum::extract::{FromRequest, FromRequestParts, Request};
use axum::http::StatusCode;
use axum::http::request::Parts;
use longhaul_pipeline::json_check;
use longhaul_queue::JobId;
use serde::de::DeserializeOwned;

use super::ApiError;
use crate::body_budget::WholeBody;
use crate::ctx::Ctx;
use crate::problem::Problem;

/// A JSON body. No body at all reads as `null`, so that an optional one may be left out.
pub(super) struct ApiJson<T>(pub(super) T);

impl<T: DeserializeOwned> FromRequest<Ctx> for ApiJson<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, ctx: &Ctx) -> Result<Self, ApiError> {
        let body = Body::from_request(request, ctx).await?;
        Ok(Self(body.read()?))
    }
}

/// A whole body within the bound, not read yet.
pub(super) struct Body(WholeBody);

impl FromRequest<Ctx> for Body {
    type Rejection = ApiError;

    async fn from_request(request: Request, ctx: &Ctx) -> Result<Self, ApiError> {
        let bytes_max = ctx.options.json_bytes_max;
        let read = ctx.bodies.read(request.into_body(), bytes_max).await;
        read.map(Self).map_err(|unread| ApiError(unread.problem(bytes_max)))
    }
}

impl Body {
    /// Reads it as `T`.
    pub(super) fn read<T: DeserializeOwned>(&self) -> Result<T, Problem> {
        let is_empty = self.0.trim_ascii().is_empty();
        let text: &[u8] = if is_empty { b"null" } else { &self.0 };
        if self.is_list() {
            return Err(unfit("the body is a list: send a JSON object", "."));
        }
        let mut reader = serde_json::Deserializer::from_slice(text);
        let value = serde_path_to_error::deserialize(&mut reader).map_err(|error| {
            let path = error.path().to_string();
            let error = error.into_inner();
            match error.classify() {
                _ if is_empty => unfit("the body is empty: send a JSON object", "."),
                serde_json::error::Category::Data => unfit(&error.to_string(), &path),
                _ => Problem::new(
                    StatusCode::BAD_REQUEST,
                    "invalid_json",
                    format!("the body is no JSON: {error}"),
                ),
            }
        })?;
        let rest = reader.end();
        rest.map_err(|error| {
            Problem::new(StatusCode::BAD_REQUEST, "invalid_json", format!("after the body: {error}"))
        })?;
        // Payloads were skipped so far.
        json_check::check(text).map_err(|error| {
            let text = format!("the body is JSON that not everybody can read: {error}");
            Problem::new(StatusCode::BAD_REQUEST, "invalid_json", text)
        })?;
        Ok(value)
    }

    /// Whether it is a list. Where an object is expected, its values in a list without names would be taken too.
    fn is_list(&self) -> bool {
        self.0.trim_ascii_start().starts_with(b"[")
    }

    /// Reads it as `T` if nothing is wrong with it. What is wrong is told by [`Body::read`], which costs more.
    pub(super) fn read_well<T: DeserializeOwned>(&self) -> Option<T> {
        if self.is_list() {
            return None;
        }
        let value = serde_json::from_slice(&self.0).ok()?;
        json_check::check(&self.0).ok()?;
        Some(value)
    }

    /// Whether it is an object with this field.
    pub(super) fn has(&self, field: &str) -> bool {
        type Fields = std::collections::HashMap<String, serde::de::IgnoredAny>;
        serde_json::from_slice::<Fields>(&self.0).is_ok_and(|fields| fields.contains_key(field))
    }
}

/// Parameters after the `?`. One that may be repeated comes as a list with commas; an unknown one is refused.
pub(super) struct ApiQuery<T>(pub(super) T);

impl<T: DeserializeOwned> FromRequestParts<Ctx> for ApiQuery<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &Ctx) -> Result<Self, ApiError> {
        let query = parts.uri.query().unwrap_or_default();
        let mut joined: Vec<(String, String)> = Vec::new();
        for (name, value) in form_urlencoded::parse(query.as_bytes()) {
            match joined.iter_mut().find(|(known, _)| *known == name) {
                Some((_, values)) => *values = format!("{values},{value}"),
                None => joined.push((name.into_owned(), value.into_owned())),
            }
        }
        let text = form_urlencoded::Serializer::new(String::new()).extend_pairs(&joined).finish();
        let reader = serde_urlencoded::Deserializer::new(form_urlencoded::parse(text.as_bytes()));
        let value = serde_path_to_error::deserialize(reader).map_err(|error| {
            let path = error.path().to_string();
            Problem { status: StatusCode::BAD_REQUEST, ..unfit(&error.into_inner().to_string(), &path) }
        })?;
        Ok(Self(value))
    }
}

/// Names the field: serde tells of one that is unknown or missing in its text only.
fn unfit(text: &str, path: &str) -> Problem {
    let named = ["unknown field `", "missing field `", "duplicate field `"].iter().find_map(|start| {
        let (_, rest) = text.split_once(start)?;
        rest.split('`').next()
    });
    let mut field = path.trim_matches('.').trim_end_matches('?').trim_end_matches('.').to_owned();
    if let Some(name) = named
        && field != name
        && !field.ends_with(&format!(".{name}"))
    {
        field = if field.is_empty() { name.to_owned() } else { format!("{field}.{name}") };
    }
    let problem = Problem::new(StatusCode::UNPROCESSABLE_ENTITY, "invalid", text);
    if field.is_empty() { problem } else { problem.at(field) }
}

/// The id in a path.
pub(super) fn job_id(text: &str) -> Result<JobId, Problem> {
    text.parse().map_err(|error| Problem::invalid(error).at("id"))
}
