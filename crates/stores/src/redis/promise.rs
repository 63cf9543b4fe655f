//! What the server's settings promise: what a crash can lose, and whether memory pressure can.

use std::collections::HashMap;

use longhaul_queue::{Error, Result};
use tracing::warn;

use super::link::Link;

/// Reads the settings and answers the promise, in a sentence. Refuses a server that may evict keys: a lease or a job that
/// is dropped silently is a job lost or run twice.
pub(super) async fn durability(link: &Link, allow_eviction: bool) -> Result<String> {
    let mut command = redis::cmd("CONFIG");
    command.arg("GET").arg(&["appendonly", "appendfsync", "maxmemory-policy", "maxmemory"]);
    let settings: HashMap<String, String> = match link.ask(&command).await {
        Ok(settings) => settings,
        Err(Error::Unavailable(text)) => return Err(Error::Unavailable(text)),
        Err(error) => {
            warn!(%error, "Redis does not tell its settings; its provider must say what survives a crash");
            return Ok(
                "unknown: the server does not tell its settings; ask its provider for append-only files and \
                       the policy noeviction"
                    .to_owned(),
            );
        }
    };
    let get = |name: &str| settings.get(name).map_or("", String::as_str);
    let policy = get("maxmemory-policy");
    let evicts = !policy.is_empty() && policy != "noeviction";
    if evicts && !allow_eviction {
        return Err(Error::invalid(format!(
            "Redis evicts keys when its memory is full (maxmemory-policy {policy}), which loses jobs and leases; run \
             CONFIG SET maxmemory-policy noeviction, or accept it with ?allow_eviction=true in the store URL"
        )));
    }
    let survives = match (get("appendonly"), get("appendfsync")) {
        ("yes", "always") => {
            "a job survives a crash of the server and of its machine once it is acknowledged"
        }
        ("yes", "everysec") => {
            "a crash of the server loses nothing; a crash of its machine can lose the last second or two (appendfsync \
             everysec)"
        }
        ("yes", _) => {
            "a crash of the server loses nothing; a crash of its machine can lose what the system had not written \
             (appendfsync no)"
        }
        _ => "a crash of the server loses everything since its last snapshot (appendonly no)",
    };
    if evicts {
        return Ok(format!("{survives}; and full memory can drop anything (maxmemory-policy {policy})"));
    }
    Ok(survives.to_owned())
}
