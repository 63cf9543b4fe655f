//! The API itself: tokens for signed claims, and four calls with Google's own words for what is wrong with them.

use std::ops::Range;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, Path, RawQuery, State as Shared};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Json, Response};
use axum::routing::{get, post};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::signature::{RSA_PKCS1_2048_8192_SHA256, RsaKeyPair, UnparsedPublicKey};
use serde_json::{Value, json};

use super::super::auth::der_of;
use super::super::{CallKind, REQUEST_RANGES_MAX};
use super::faults::SheetsFault;
use super::grid::{Grid, Named, named};
use super::{EMAIL, KEY, QUOTA, SPREADSHEET, Sharing, State, TOKEN_SECONDS, lock};

const BODY_BYTES_MAX: usize = 2_000_000;
const CELL_LETTERS_MAX: usize = 50_000;

#[derive(Clone)]
struct Server {
    state: Arc<Mutex<State>>,
    token_url: Arc<str>,
}

/// What a call came to.
type Outcome = Result<Value, Refusal>;

struct Refusal {
    status: u16,
    words: String,
    retry_after: Option<Duration>,
}

impl Refusal {
    fn new(status: u16, words: impl Into<String>) -> Self {
        Self { status, words: words.into(), retry_after: None }
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let body =
            json!({"error": {"code": self.status, "message": self.words, "status": status.to_string()}});
        let mut response = (status, Json(body)).into_response();
        if let Some(wait) = self.retry_after {
            response.headers_mut().insert("retry-after", wait.as_secs().into());
        }
        response
    }
}

pub(super) fn router(state: Arc<Mutex<State>>, token_url: String) -> Router {
    Router::new()
        .route("/token", post(token))
        .route("/v4/spreadsheets/{*call}", get(read).post(write))
        .layer(DefaultBodyLimit::max(BODY_BYTES_MAX))
        .with_state(Server { state, token_url: token_url.into() })
}

async fn token(Shared(server): Shared<Server>, body: Bytes) -> Response {
    let field =
        |name: &str| form_urlencoded::parse(&body).find(|(key, _)| key == name).map(|(_, value)| value);
    let mut state = lock(&server.state);
    let now = state.clock.now();
    let refused = |words: &str| {
        let body = json!({"error": "invalid_grant", "error_description": words});
        (StatusCode::BAD_REQUEST, Json(body)).into_response()
    };
    if field("grant_type").as_deref() != Some("urn:ietf:params:oauth:grant-type:jwt-bearer") {
        return refused("Invalid grant_type");
    }
    let Some(claims) = verified(&field("assertion").unwrap_or_default()) else {
        return refused("Invalid JWT Signature.");
    };
    let seconds = now.as_millis() / 1000;
    let (from, to) = (claims["iat"].as_i64().unwrap_or(i64::MAX), claims["exp"].as_i64().unwrap_or(0));
    if from > seconds + 60 || to < seconds || to - from > 3600 {
        return refused("Invalid JWT: Token must be a short-lived token and in a reasonable timeframe.");
    }
    if claims["aud"] != *server.token_url || claims["iss"] != EMAIL {
        return refused("Invalid JWT: Failed audience or issuer check.");
    }
    if claims["scope"] != "https://www.googleapis.com/auth/spreadsheets" {
        return refused("Invalid OAuth scope.");
    }
    state.tokens_given += 1;
    let token = format!("ya29.fake-{}-{}", state.tokens_given, fastrand::u64(..));
    state.tokens.push((token.clone(), now + Duration::from_secs(TOKEN_SECONDS)));
    Json(json!({"access_token": token, "expires_in": TOKEN_SECONDS, "token_type": "Bearer"})).into_response()
}

/// The claims, if the key of the account has signed them.
fn verified(assertion: &str) -> Option<Value> {
    let (signed, signature) = assertion.rsplit_once('.')?;
    let pair = RsaKeyPair::from_pkcs8(&der_of(KEY)?).ok()?;
    let public = UnparsedPublicKey::new(&RSA_PKCS1_2048_8192_SHA256, pair.public().as_ref());
    public.verify(signed.as_bytes(), &URL_SAFE_NO_PAD.decode(signature).ok()?).ok()?;
    let (_, claims) = signed.split_once('.')?;
    serde_json::from_slice(&URL_SAFE_NO_PAD.decode(claims).ok()?).ok()
}

async fn read(
    Shared(server): Shared<Server>,
    Path(call): Path<String>,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
) -> Response {
    let query = query.unwrap_or_default();
    let answer = answer(&server, (CallKind::Read, &headers), &call, |state, call| match call {
        "" => Ok(properties(state)),
        "/values:batchGet" => values(state, &query),
        _ => Err(Refusal::new(404, "Not Found")),
    });
    answer.await
}

async fn write(
    Shared(server): Shared<Server>,
    Path(call): Path<String>,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let answer = answer(&server, (CallKind::Write, &headers), &call, |state, call| {
        let body: Value = serde_json::from_slice(&body)
            .map_err(|error| Refusal::new(400, format!("Invalid JSON payload received. {error}")))?;
        match call {
            "/values:batchUpdate" => update(state, &body),
            ":batchUpdate" => append(state, &body),
            _ => Err(Refusal::new(404, "Not Found")),
        }
    });
    answer.await
}

/// What all calls have in common: the token, the quota, a bad day, the right to do it.
async fn answer(
    server: &Server,
    (kind, headers): (CallKind, &HeaderMap),
    call: &str,
    work: impl FnOnce(&mut State, &str) -> Outcome,
) -> Response {
    let (id, call) = call.split_at(call.find(['/', ':']).unwrap_or(call.len()));
    let authorization =
        headers.get("authorization").and_then(|value| value.to_str().ok()).unwrap_or_default();
    let (fault, outcome) = {
        let mut state = lock(&server.state);
        match let_in(&mut state, kind, authorization.trim_start_matches("Bearer ")) {
            Err(refusal) => (None, Err(refusal)),
            Ok(fault @ (None | Some(SheetsFault::LostAnswer))) => {
                (fault, allowed(&state, kind, id).and_then(|()| work(&mut state, call)))
            }
            Ok(fault) => (fault, Ok(Value::Null)),
        }
    };
    match fault {
        None => outcome.map_or_else(IntoResponse::into_response, |value| Json(value).into_response()),
        // The task of the connection ends here, and the connection with it, without a word.
        Some(SheetsFault::LostAnswer) => std::panic::resume_unwind(Box::new("a lost answer")),
        Some(SheetsFault::Hang) => std::future::pending().await,
        Some(SheetsFault::Status(status)) => Refusal::new(status, "a bad day").into_response(),
        Some(SheetsFault::TooMany(retry_after)) => {
            Refusal { retry_after, ..Refusal::new(429, "Quota exceeded, says the test") }.into_response()
        }
    }
}

fn let_in(state: &mut State, kind: CallKind, token: &str) -> Result<Option<SheetsFault>, Refusal> {
    if !state.holds(token) {
        return Err(Refusal::new(401, "Request had invalid authentication credentials."));
    }
    if !state.admit(kind) {
        let words =
            format!("Quota exceeded for quota metric '{kind:?} requests' per minute per user: {QUOTA}");
        return Err(Refusal::new(429, words));
    }
    Ok(state.faults.next(kind))
}

fn allowed(state: &State, kind: CallKind, id: &str) -> Result<(), Refusal> {
    match (state.sharing, kind) {
        _ if id != SPREADSHEET => Err(Refusal::new(404, "Requested entity was not found.")),
        (Sharing::Editor, _) | (Sharing::Viewer, CallKind::Read) => Ok(()),
        (Sharing::Viewer | Sharing::Nobody, _) => {
            Err(Refusal::new(403, "The caller does not have permission"))
        }
    }
}

fn properties(state: &State) -> Value {
    let sheets = state.sheets.iter().enumerate().map(|(index, grid)| {
        let size = json!({"rowCount": grid.row_count, "columnCount": grid.column_count});
        let properties = json!({"sheetId": grid.gid, "title": grid.title, "index": index, "sheetType": "GRID",
                                "gridProperties": size});
        json!({"properties": properties})
    });
    json!({"sheets": sheets.collect::<Vec<_>>()})
}

fn values(state: &State, query: &str) -> Outcome {
    let mut ranges = Vec::new();
    for (key, name) in form_urlencoded::parse(query.as_bytes()) {
        let known = match (&*key, &*name) {
            ("ranges", name) => {
                let (index, rows, columns) = found(&state.sheets, name, false)?;
                let values = state.sheets[index].read(rows, columns);
                let mut range = json!({"range": name, "majorDimension": "ROWS"});
                // Like Google, it has no word for no values.
                if !values.is_empty() {
                    range["values"] = json!(values);
                }
                ranges.push(range);
                true
            }
            ("majorDimension", value) => value == "ROWS",
            ("valueRenderOption", value) => value == "UNFORMATTED_VALUE",
            ("dateTimeRenderOption", value) => value == "FORMATTED_STRING",
            _ => false,
        };
        if !known {
            return Err(Refusal::new(400, format!("Invalid value at '{key}': {name}")));
        }
    }
    Ok(json!({"spreadsheetId": SPREADSHEET, "valueRanges": ranges}))
}

fn update(state: &mut State, body: &Value) -> Outcome {
    if body["valueInputOption"] != "RAW" {
        return Err(Refusal::new(400, "'valueInputOption' is required but not specified"));
    }
    let data = body["data"].as_array().map(Vec::as_slice).unwrap_or_default();
    if data.len() > REQUEST_RANGES_MAX {
        return Err(Refusal::new(400, format!("{} ranges, says the test", data.len())));
    }
    // All of it is looked at before any of it is done.
    let mut cells = Vec::new();
    for range in data {
        let name = range["range"].as_str().unwrap_or_default();
        let (index, rows, columns) = found(&state.sheets, name, true)?;
        let values: Vec<Vec<Value>> = serde_json::from_value(range["values"].clone())
            .map_err(|error| Refusal::new(400, format!("Invalid value at 'data.values': {error}")))?;
        if values.len() > rows.len() || values.iter().any(|row| row.len() > columns.len()) {
            let words = format!("Requested writing within range [{name}], but tried to write more");
            return Err(Refusal::new(400, words));
        }
        for (row, values) in rows.zip(values) {
            for (column, value) in columns.clone().zip(values) {
                check(&value)?;
                cells.push((index, row, column, value));
            }
        }
    }
    let count = cells.len();
    for (index, row, column, value) in cells {
        state.sheets[index].set(row, column, value);
    }
    Ok(json!({"spreadsheetId": SPREADSHEET, "totalUpdatedCells": count}))
}

fn check(value: &Value) -> Result<(), Refusal> {
    match value {
        Value::Array(_) | Value::Object(_) => {
            Err(Refusal::new(400, "Invalid values: struct_value or list_value"))
        }
        Value::String(text) if text.encode_utf16().count() > CELL_LETTERS_MAX => {
            let words = "Your input contains more than the maximum of 50000 characters in a single cell.";
            Err(Refusal::new(400, words))
        }
        _ => Ok(()),
    }
}

fn append(state: &mut State, body: &Value) -> Outcome {
    let append = &body["requests"][0]["appendDimension"];
    let grid = state.sheets.iter_mut().find(|grid| append["sheetId"] == grid.gid);
    match (grid, append["dimension"].as_str(), append["length"].as_u64()) {
        (Some(grid), Some("COLUMNS"), Some(length)) => {
            grid.column_count += usize::try_from(length).unwrap_or(0);
            Ok(json!({"spreadsheetId": SPREADSHEET, "replies": [{}]}))
        }
        _ => Err(Refusal::new(400, "Invalid requests[0]")),
    }
}

/// The cells that a name means. Reading may go over the edge when it begins within, writing may not.
fn found(sheets: &[Grid], name: &str, writes: bool) -> Result<(usize, Range<usize>, Range<usize>), Refusal> {
    let unknown = || Refusal::new(400, format!("Unable to parse range: {name}"));
    let Named { title, rows, columns } = named(name).ok_or_else(unknown)?;
    let index = sheets.iter().position(|grid| grid.title == title).ok_or_else(unknown)?;
    let Grid { row_count, column_count, .. } = sheets[index];
    let (rows, columns) = (rows.unwrap_or(0..row_count), columns.unwrap_or(0..column_count));
    let over = |range: &Range<usize>, count| range.start >= count || (writes && range.end > count);
    if over(&rows, row_count) || over(&columns, column_count) {
        let words =
            format!("Range ({name}) exceeds grid limits. Max rows: {row_count}, max columns: {column_count}");
        return Err(Refusal::new(400, words));
    }
    Ok((index, rows.start..rows.end.min(row_count), columns.start..columns.end.min(column_count)))
}
