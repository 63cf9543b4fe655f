//! What `doctor` says about models: keys at hand, engines nearby, the age of prices, the file that remembers. No paid
//! service is called, and no key is shown.

use std::path::Path;

use anyhow::{Context as _, Result};
use longhaul_llm::{Scope, file::LlmFile, ledger::Ledger, local};

use super::Check;
use crate::app::App;
use crate::models;
use crate::output::{counted, size};

/// Prices change; a table older than this is worth a look.
const PRICES_DAYS_MAX: u32 = 180;
/// Models of an engine that are named.
const MODELS_SHOWN_MAX: usize = 3;

/// All checks about models.
pub(super) async fn checks(app: &App) -> Vec<Check> {
    let mut checks = vec![profiles(app)];
    checks.extend(engines().await);
    checks.push(prices(app));
    checks.push(file(app).await);
    checks
}

fn profiles(app: &App) -> Check {
    match models::Setup::new(app, None) {
        Err(error) => Check::problem("profiles", format!("{error:#}"), "longhaul config show"),
        Ok(setup) => match setup.with_keys().as_slice() {
            [] => Check::note("profiles", "no profile has a key", "set OPENAI_API_KEY, or: longhaul keys ls"),
            names => Check::ok("profiles", format!("keys for {}", names.join(", "))),
        },
    }
}

async fn engines() -> Vec<Check> {
    let found = local::detect_all().await;
    if found.is_empty() {
        return vec![Check::ok("engines", "none found at ports 11434, 8080 and 8000")];
    }
    let describe = |engine: local::LocalEngine| {
        let mut models: Vec<&str> = engine.models.iter().take(MODELS_SHOWN_MAX).map(String::as_str).collect();
        if engine.models.len() > MODELS_SHOWN_MAX {
            models.push("…");
        }
        let slots = engine.slots.map_or_else(String::new, |slots| format!(", {slots} at once"));
        let text = format!("{} at {}{slots}: {}", engine.kind, engine.base_url, models.join(", "));
        match engine.ready {
            true => Check::ok("engines", text),
            false => Check::note("engines", format!("{text} still loads"), "wait until its model is loaded"),
        }
    };
    found.into_iter().map(describe).collect()
}

fn prices(app: &App) -> Check {
    let age = || -> Result<u32> {
        let today = jiff::Timestamp::from_millisecond(app.now().as_millis())?;
        Ok(models::prices(app)?.age_days(today.to_zoned(jiff::tz::TimeZone::UTC).date()))
    };
    match age() {
        Err(error) => Check::problem(
            "prices",
            format!("{error:#}"),
            "mend the file that llm.prices names, or leave it away",
        ),
        Ok(days) if days > PRICES_DAYS_MAX => {
            let hint = "compare with your provider's, and name a file of your own in llm.prices";
            Check::note("prices", format!("{} old", counted(days.into(), "day")), hint)
        }
        Ok(days) => Check::ok("prices", format!("{} old", counted(days.into(), "day"))),
    }
}

async fn file(app: &App) -> Check {
    let hint = "move it away: answers of runs are not in it, but the cache and the history of spending are";
    let path = match models::file_of(app) {
        Err(error) => return Check::problem("llm.db", format!("{error:#}"), "longhaul config show"),
        Ok(None) => return Check::ok("llm.db", "none beside a store in memory"),
        Ok(Some(path)) => path,
    };
    match look(&path).await {
        Err(error) => Check::problem("llm.db", format!("{error:#}"), hint),
        Ok(None) => Check::ok("llm.db", "not there yet: no prompt was run"),
        Ok(Some(text)) => Check::ok("llm.db", text),
    }
}

/// What the file holds; nothing is made where there is none.
async fn look(path: &Path) -> Result<Option<String>> {
    if !path.exists() {
        return Ok(None);
    }
    let bytes = path.metadata().with_context(|| format!("reading {}", path.display()))?.len();
    let file = LlmFile::open(path)?;
    let totals = Ledger::new(file).totals(&Scope::all()).await.context("reading what was spent")?;
    let unknown = match totals.unknown_calls {
        0 => String::new(),
        count => format!(", {} that may have been billed", counted(count, "call")),
    };
    Ok(Some(format!("opens, {}, {} booked{unknown}", size(bytes), counted(totals.calls, "call"))))
}
