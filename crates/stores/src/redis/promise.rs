//! What the server's settings promise: what a crash can lose, and whether memory pressure can. And whether what it holds can be
//! read at all.

use std::collections::HashMap;

use longhaul_queue::store::Caps;
use longhaul_queue::{Error, Result};
use tracing::warn;

use super::link::Link;
use super::scripts::LAYOUT;

/// Refuses an installation whose jobs are laid out in another way.
pub(super) async fn check_layout(link: &Link, name: &str) -> Result<()> {
    let mut command = redis::cmd("HMGET");
    command.arg(link.key("meta")).arg("seq").arg("layout");
    let (seq, layout): (Option<u64>, Option<usize>) = link.ask(&command).await?;
    // The first layout did not say its number.
    match layout.or(seq.map(|_| 1)) {
        None | Some(LAYOUT) => Ok(()),
        Some(other) => Err(Error::invalid(format!(
            "the installation {name:?} in Redis has layout {other}, this program reads layout {LAYOUT}; use the version that \
             wrote it, or another ?name="
        ))),
    }
}

/// Reads the settings and answers what they promise. Refuses a server that may evict keys: a lease or a job that is dropped
/// silently is a job lost or run twice.
pub(super) async fn caps(link: &Link, allow_eviction: bool) -> Result<Caps> {
    let (durability, advice) = promise(link, allow_eviction).await?;
    Ok(Caps { name: "redis", durability, advice, shared: true })
}

/// The promise in a sentence, and what to change where it could be better.
async fn promise(link: &Link, allow_eviction: bool) -> Result<(String, Option<&'static str>)> {
    let mut command = redis::cmd("CONFIG");
    command.arg("GET").arg(&["appendonly", "appendfsync", "maxmemory-policy", "maxmemory"]);
    let settings: HashMap<String, String> = match link.ask(&command).await {
        Ok(settings) => settings,
        Err(Error::Unavailable(text)) => return Err(Error::Unavailable(text)),
        Err(error) => {
            warn!(%error, "Redis does not tell its settings; its provider must say what survives a crash");
            let text = "unknown: the server does not tell its settings; ask its provider for append-only files and \
                        the policy noeviction";
            let advice = "ask its provider for appendonly yes, appendfsync everysec and noeviction";
            return Ok((text.to_owned(), Some(advice)));
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
    let (survives, advice) = survives(get("appendonly"), get("appendfsync"));
    if evicts {
        let text = format!("{survives}; and full memory can drop anything (maxmemory-policy {policy})");
        return Ok((text, advice.or(Some("set maxmemory-policy noeviction in redis.conf"))));
    }
    Ok((survives.to_owned(), advice))
}

/// What survives a crash by these settings, and what to change.
fn survives(appendonly: &str, appendfsync: &str) -> (&'static str, Option<&'static str>) {
    match (appendonly, appendfsync) {
        ("yes", "always") => {
            ("a job survives a crash of the server and of its machine once it is acknowledged", None)
        }
        ("yes", "everysec") => (
            "a crash of the server loses nothing; a crash of its machine can lose the last second or two (appendfsync \
             everysec)",
            None,
        ),
        ("yes", _) => (
            "a crash of the server loses nothing; a crash of its machine can lose what the system had not written \
             (appendfsync no)",
            None,
        ),
        _ => (
            "a crash of the server loses everything since its last snapshot (appendonly no): set appendonly yes",
            Some(
                "set appendonly yes and appendfsync everysec in redis.conf, or at once: CONFIG SET appendonly yes, CONFIG \
                 REWRITE",
            ),
        ),
    }
}
