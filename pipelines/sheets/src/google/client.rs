//! The calls: properties of a spreadsheet, values of some areas, values into some areas. Each is counted first.

use std::sync::Arc;
use std::time::Duration;

use longhaul_llm::HttpClient;
use longhaul_llm::profile::Secret;
use longhaul_queue::Clock;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::{Mutex, MutexGuard};
use tracing::warn;

use super::super::places::SinkError;
use super::super::settings::GoogleSheet;
use super::super::tables::Tables;
use super::super::{Error, Result};
use super::a1::Area;
use super::address::{SheetAddress, SheetChoice};
use super::auth::Auth;
use super::errors::{Failure, broken, outage, words_of};
use super::patches::Patch;
use super::quota::{CallKind, Quota};
use super::{BASE_URL, GoogleOptions};

/// Bytes of an answer that are read. Texts of some thousand rows are a few MB.
const ANSWER_BYTES_MAX: usize = 128 * 1024 * 1024;
/// Bytes of names of areas in an address; servers refuse addresses that are much longer.
const QUERY_BYTES_MAX: usize = 6_000;
const WHAT: &str = "Google Sheets";
/// Tries of a read that somebody waits for, and the wait after the first, doubled each time.
const READ_TRIES: u32 = 5;
const READ_WAIT: Duration = Duration::from_millis(500);

/// Reads again while time may heal what is wrong. Who writes has a patience of its own.
#[derive(Default)]
pub(super) struct Patience {
    tries: u32,
}

impl Patience {
    /// Waits, unless it is of no use or was tried often enough.
    pub(super) async fn wait_after(&mut self, error: SinkError) -> Result<(), SinkError> {
        self.tries += 1;
        let wait = match &error {
            SinkError::Outage { retry_after, .. } if self.tries < READ_TRIES => {
                READ_WAIT.saturating_mul(1 << (self.tries - 1)).max(retry_after.unwrap_or_default())
            }
            SinkError::Outage { .. } | SinkError::Refused(_) => return Err(error),
        };
        warn!(%error, tries = self.tries, "reading a sheet failed, trying again");
        tokio::time::sleep(wait).await;
        Ok(())
    }
}

/// Google Sheets, for one service account. Cheap to clone; all clones keep to the quota together.
#[derive(Clone)]
pub struct Google {
    inner: Arc<Inner>,
}

struct Inner {
    http: HttpClient,
    base_url: String,
    auth: Auth,
    quota: Quota,
    turn: Mutex<()>,
}

/// A sheet that is there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FoundSheet {
    /// Its names, to be kept.
    pub sheet: GoogleSheet,
    /// Its number.
    pub gid: i64,
    /// Rows that it has room for, filled or not.
    pub rows: u64,
    /// Columns that it has room for.
    pub columns: usize,
}

/// What stands in an area; rows and cells after the last filled ones are missing.
#[derive(Debug)]
pub(super) struct Block {
    pub(super) area: Area,
    pub(super) values: Vec<Vec<Value>>,
}

impl Block {
    /// A cell, if the area has it; blank ones may be missing.
    pub(super) fn cell(&self, row: u64, column: usize) -> Option<&Value> {
        let (first_row, first_column) = self.area.start();
        let row = usize::try_from(row.checked_sub(first_row)?).ok()?;
        self.values.get(row)?.get(column.checked_sub(first_column)?)
    }
}

struct Call {
    kind: CallKind,
    /// After the spreadsheet's id.
    path: String,
    body: Option<Value>,
}

impl Google {
    /// Prepares everything; the first call comes with the first use.
    pub fn new(options: &GoogleOptions, tables: Tables, clock: Arc<dyn Clock>) -> Result<Self> {
        let base_url = options.base_url.as_deref().unwrap_or(BASE_URL).trim_end_matches('/').to_owned();
        if !base_url.starts_with("https://") && !base_url.starts_with("http://") {
            return Err(Error::Invalid(format!(
                "{base_url}: the address of Google Sheets must begin with https://"
            )));
        }
        let http = longhaul_llm::plain_client(&base_url, options.answer_wait)?;
        let auth = Auth::new(options, Arc::clone(&clock))?;
        let quota = Quota::new(tables, clock, options.key.email());
        Ok(Self { inner: Arc::new(Inner { http, base_url, auth, quota, turn: Mutex::new(()) }) })
    }

    /// The account, with which sheets are shared.
    pub fn email(&self) -> &str {
        self.inner.auth.email()
    }

    /// Looks up the sheet that a user names.
    pub async fn find(&self, address: &SheetAddress) -> Result<FoundSheet, SinkError> {
        let mut patience = Patience::default();
        let sheets = loop {
            match self.sheets(&address.spreadsheet).await {
                Err(error) => patience.wait_after(error).await?,
                Ok(sheets) => break sheets,
            }
        };
        let titles =
            sheets.iter().map(|found| format!("{:?}", found.sheet.sheet)).collect::<Vec<_>>().join(", ");
        let mut sheets = sheets.into_iter();
        let (found, wanted) = match &address.sheet {
            SheetChoice::First => (sheets.next(), "sheet".to_owned()),
            SheetChoice::Title(title) => {
                (sheets.find(|found| found.sheet.sheet == *title), format!("sheet {title:?}"))
            }
            SheetChoice::Gid(gid) => {
                (sheets.find(|found| found.gid == *gid), format!("sheet with gid={gid}"))
            }
        };
        found.ok_or_else(|| {
            let id = &address.spreadsheet;
            SinkError::Refused(format!("the spreadsheet {id} has no {wanted}; its sheets are: {titles}"))
        })
    }

    /// How large a sheet is now.
    pub(super) async fn size(&self, sheet: &GoogleSheet) -> Result<FoundSheet, SinkError> {
        let sheet_choice = SheetChoice::Title(sheet.sheet.clone());
        self.find(&SheetAddress { spreadsheet: sheet.spreadsheet.clone(), sheet: sheet_choice }).await
    }

    async fn sheets(&self, spreadsheet: &str) -> Result<Vec<FoundSheet>, SinkError> {
        let path = "?fields=sheets.properties".to_owned();
        let answer = self.call(spreadsheet, Call { kind: CallKind::Read, path, body: None }).await;
        let answer = answer.map_err(|failure| self.explained(failure, spreadsheet))?;
        let answer: SheetsAnswer = parsed(&answer)?;
        let sheets = answer.sheets.into_iter().map(|Listed { properties }| FoundSheet {
            sheet: GoogleSheet { spreadsheet: spreadsheet.to_owned(), sheet: properties.title },
            gid: properties.sheet_id,
            rows: properties.grid_properties.row_count,
            columns: properties.grid_properties.column_count,
        });
        Ok(sheets.collect())
    }

    /// Values of areas, in their order, with one call as long as the address of it has room. What lies beyond the
    /// sheet is blank.
    pub(super) async fn read(&self, sheet: &GoogleSheet, areas: &[Area]) -> Result<Vec<Block>, SinkError> {
        let failed = |failure: Failure| self.explained(failure, &sheet.spreadsheet);
        let values = match self.values(sheet, areas).await {
            Err(failure) if failure.is_beyond_the_grid() => {
                let size = self.size(sheet).await?;
                let parts: Vec<Option<Area>> =
                    areas.iter().map(|area| area.within((size.rows, size.columns))).collect();
                let there: Vec<Area> = parts.iter().flatten().cloned().collect();
                let mut values = self.values(sheet, &there).await.map_err(failed)?.into_iter();
                parts
                    .iter()
                    .map(|part| part.as_ref().and_then(|_| values.next()).unwrap_or_default())
                    .collect()
            }
            values => values.map_err(failed)?,
        };
        Ok(areas.iter().cloned().zip(values).map(|(area, values)| Block { area, values }).collect())
    }

    async fn values(&self, sheet: &GoogleSheet, areas: &[Area]) -> Result<Vec<Vec<Vec<Value>>>, Failure> {
        let mut values = Vec::with_capacity(areas.len());
        for path in paths(&sheet.sheet, areas) {
            let answer =
                self.call(&sheet.spreadsheet, Call { kind: CallKind::Read, path, body: None }).await?;
            let answer: ValuesAnswer = parsed(&answer)?;
            values.extend(answer.value_ranges.into_iter().map(|range| range.values));
        }
        if values.len() != areas.len() {
            return Err(
                outage(format!("{WHAT} left out some of the ranges that it was asked for"), None).into()
            );
        }
        Ok(values)
    }

    /// Writes patches with one call.
    pub(super) async fn write(&self, sheet: &GoogleSheet, patches: &[Patch]) -> Result<(), SinkError> {
        let data: Vec<Value> = patches
            .iter()
            .map(|patch| json!({"range": patch.area().name(&sheet.sheet), "values": patch.values}))
            .collect();
        let body = Some(json!({"valueInputOption": "RAW", "data": data}));
        self.change(sheet, Call { kind: CallKind::Write, path: "/values:batchUpdate".to_owned(), body }).await
    }

    /// Makes room for more columns, behind the last.
    pub(super) async fn append_columns(&self, found: &FoundSheet, count: usize) -> Result<(), SinkError> {
        let append = json!({"sheetId": found.gid, "dimension": "COLUMNS", "length": count});
        let body = Some(json!({"requests": [{"appendDimension": append}]}));
        self.change(&found.sheet, Call { kind: CallKind::Write, path: ":batchUpdate".to_owned(), body }).await
    }

    async fn change(&self, sheet: &GoogleSheet, call: Call) -> Result<(), SinkError> {
        let answer = self.call(&sheet.spreadsheet, call).await;
        answer.map(drop).map_err(|failure| self.explained(failure, &sheet.spreadsheet))
    }

    /// One who looks and then writes: others of this process wait, so that none writes on what another has just changed,
    /// and no more than one call is under way that was counted and has not arrived.
    pub(super) async fn turn(&self) -> MutexGuard<'_, ()> {
        self.inner.turn.lock().await
    }

    async fn call(&self, spreadsheet: &str, call: Call) -> Result<Vec<u8>, Failure> {
        let Inner { auth, .. } = &*self.inner;
        let token = auth.token().await?;
        match self.once(spreadsheet, &call, &token).await {
            // A token can be taken back before its end; a second one tells whether it is the account itself.
            Err(Failure::Status { status: 401, .. }) => {
                auth.forget(&token).await;
                let token = auth.token().await?;
                self.once(spreadsheet, &call, &token).await
            }
            answer => answer,
        }
    }

    async fn once(&self, spreadsheet: &str, call: &Call, token: &Secret) -> Result<Vec<u8>, Failure> {
        let Inner { http, base_url, quota, .. } = &*self.inner;
        let url = format!("{base_url}/v4/spreadsheets/{spreadsheet}{}", call.path);
        let request = match &call.body {
            None => http.get(url),
            Some(body) => http.post(url).header("content-type", "application/json").body(body.to_string()),
        };
        quota.take(call.kind).await?;
        let response = request.bearer_auth(token.expose()).send().await.map_err(|error| {
            let timed_out = error.is_timeout();
            broken(WHAT, &error.without_url(), timed_out)
        })?;
        body_of(response, WHAT).await
    }

    fn explained(&self, failure: Failure, spreadsheet: &str) -> SinkError {
        failure.explained(self.email(), spreadsheet)
    }
}

/// The body of an answer that says yes.
pub(super) async fn body_of(mut response: reqwest::Response, what: &str) -> Result<Vec<u8>, Failure> {
    let status = response.status();
    let seconds =
        response.headers().get("retry-after").and_then(|value| value.to_str().ok()?.trim().parse().ok());
    let retry_after = seconds.map(Duration::from_secs);
    let mut body = Vec::new();
    loop {
        let piece = response.chunk().await.map_err(|error| {
            let timed_out = error.is_timeout();
            broken(what, &error.without_url(), timed_out)
        })?;
        let Some(piece) = piece else { break };
        if body.len() + piece.len() > ANSWER_BYTES_MAX {
            let text = format!("{what} answered more than {ANSWER_BYTES_MAX} bytes: read fewer rows at once");
            return Err(SinkError::Refused(text).into());
        }
        body.extend_from_slice(&piece);
    }
    if status.is_success() {
        return Ok(body);
    }
    Err(Failure::Status { status: status.as_u16(), words: words_of(&body), retry_after })
}

/// Addresses that ask for areas, as few as they may be.
fn paths(title: &str, areas: &[Area]) -> Vec<String> {
    let mut paths: Vec<String> = Vec::new();
    let start = "/values:batchGet?majorDimension=ROWS&valueRenderOption=UNFORMATTED_VALUE\
                 &dateTimeRenderOption=FORMATTED_STRING";
    for area in areas {
        let name: String = form_urlencoded::byte_serialize(area.name(title).as_bytes()).collect();
        match paths.last_mut() {
            Some(path) if path.len() + name.len() <= QUERY_BYTES_MAX => {
                path.push_str("&ranges=");
                path.push_str(&name);
            }
            _ => paths.push(format!("{start}&ranges={name}")),
        }
    }
    paths
}

fn parsed<T: for<'a> Deserialize<'a>>(body: &[u8]) -> Result<T, SinkError> {
    serde_json::from_slice(body)
        .map_err(|error| outage(format!("{WHAT} answered something that is not understood: {error}"), None))
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ValuesAnswer {
    #[serde(default)]
    value_ranges: Vec<ValueRange>,
}

#[derive(Deserialize)]
struct ValueRange {
    #[serde(default)]
    values: Vec<Vec<Value>>,
}

#[derive(Deserialize)]
struct SheetsAnswer {
    #[serde(default)]
    sheets: Vec<Listed>,
}

#[derive(Deserialize)]
struct Listed {
    properties: Properties,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Properties {
    sheet_id: i64,
    title: String,
    /// Sheets that are only a chart have none.
    #[serde(default)]
    grid_properties: GridProperties,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct GridProperties {
    row_count: u64,
    column_count: usize,
}
