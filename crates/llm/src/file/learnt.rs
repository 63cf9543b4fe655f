//! What a rate controller learnt of its routes, kept for its next start: a bounded store of JSON by route.

use rusqlite::OptionalExtension;
use serde_json::Value;

use super::{FileError, FileResult, LlmFile};

/// Routes that are kept; the one written longest ago gives way.
const ROUTES_MAX: i64 = 1_000;
/// Bytes of a route's name, and of what is kept for it.
const ROUTE_BYTES_MAX: usize = 1_024;
const JSON_BYTES_MAX: usize = 64 * 1024;

impl LlmFile {
    /// Keeps what was learnt of a route, in place of what was kept before.
    pub async fn put_learnt(&self, route: &str, json: &Value) -> FileResult<()> {
        let (route, json) = (route.to_owned(), json.to_string());
        if route.len() > ROUTE_BYTES_MAX || json.len() > JSON_BYTES_MAX {
            return Err(FileError::invalid(format!(
                "what was learnt of a route has {} bytes, its name {}: more than {JSON_BYTES_MAX} and {ROUTE_BYTES_MAX}",
                json.len(),
                route.len()
            )));
        }
        self.write(move |tx| {
            // A replaced row gets a new number, so numbers tell the order of writing.
            let put = "INSERT OR REPLACE INTO learnt (route, json) VALUES (?1, ?2)";
            tx.connection.prepare_cached(put)?.execute((&route, &json))?;
            let bound = "DELETE FROM learnt WHERE number IN
                             (SELECT number FROM learnt ORDER BY number DESC LIMIT -1 OFFSET ?1)";
            tx.connection.prepare_cached(bound)?.execute([ROUTES_MAX])?;
            Ok(())
        })
        .await
    }

    /// What was learnt of a route.
    pub async fn get_learnt(&self, route: &str) -> FileResult<Option<Value>> {
        let route = route.to_owned();
        self.read(move |connection| {
            let get = "SELECT json FROM learnt WHERE route = ?1";
            let json: Option<String> =
                connection.prepare_cached(get)?.query_row([route], |row| row.get(0)).optional()?;
            json.map(|json| serde_json::from_str(&json)).transpose().map_err(|error| {
                FileError::corrupt(format!("the saved rate-limit state is not valid JSON: {error}"))
            })
        })
        .await
    }
}
