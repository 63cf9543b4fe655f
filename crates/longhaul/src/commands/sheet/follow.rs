//! Following a sheet: a bar on stderr until it ends or is held.

use std::time::Duration;

use anyhow::Result;
use longhaul_sheets::sheet::OUTAGE;
use longhaul_sheets::status::SheetState;
use longhaul_sheets::{Scoring, SheetId, Status};

use crate::app::App;
use crate::commands::provider_outage::OutageNotice;
use crate::output::short_count;
use crate::progress::{Fact, Rate, Status as Shown};

/// Least and greatest time between two looks.
const LOOK_GAP: Duration = Duration::from_millis(200);
const LOOK_AT_LEAST: Duration = Duration::from_secs(2);

/// Shows a sheet until nothing more happens by itself.
pub(super) async fn show(app: &App, scoring: &Scoring, id: &SheetId) -> Result<Status> {
    let (mut progress, mut rate) = (app.progress()?, Rate::default());
    let mut changes = scoring.queue().changes();
    let notice = OutageNotice::default();
    loop {
        changes.mark_unchanged();
        let sheet = scoring.tables().get(id.as_str()).await?;
        let status = Status::of(scoring, &sheet).await?;
        let units = &status.units;
        let shown = Shown {
            done: units.ended() - units.scored,
            total: units.total,
            failed: units.failed,
            running: scoring.gauges().invoking.get(),
        };
        let rate = rate.update(units.ended());
        progress.update_with(shown, &facts(scoring, &status, rate));
        let outage = status.message.as_deref().filter(|_| status.held.as_deref() == Some(OUTAGE));
        notice.look(app, outage, units.ended());
        if status.is_over() {
            return Ok(status);
        }
        tokio::time::sleep(LOOK_GAP).await;
        let _ = tokio::time::timeout(LOOK_AT_LEAST, changes.changed()).await;
    }
}

fn facts(scoring: &Scoring, status: &Status, rate: f64) -> Vec<Fact> {
    let spent = &status.spent;
    let fact = |name, value: String, text: String| Fact { name, value, text };
    let mut facts = vec![fact("rate", format!("{rate:.1}"), format!("{rate:.0} units/s"))];
    let tokens = spent.usage.total();
    facts.push(fact("tokens", tokens.to_string(), format!("{} tokens", short_count(tokens))));
    facts.push(Fact::cost(spent, status.estimated(), status.projected()));
    for (name, count, text) in [
        ("throttled", spent.throttled, "429s"),
        ("cached", status.units.cached, "cached"),
        ("asked_again", spent.repaired + spent.retried, "asked again"),
        ("to_write", status.units.scored, "to write"),
    ] {
        if count > 0 {
            facts.push(fact(name, count.to_string(), format!("{text} {count}")));
        }
    }
    let lag = scoring.gauges().writer_lag_ms.get();
    if lag >= 1_000 && status.state == SheetState::Running {
        facts.push(fact(
            "writer_lag_ms",
            lag.to_string(),
            format!("sink lags {:.0} s", lag as f64 / 1_000.0),
        ));
    }
    facts
}
