//! `costs`: what was spent, by day and model.

use anyhow::Result;
use longhaul_llm::ledger::day_of;
use serde::Serialize;

use crate::app::App;
use crate::exit::Code;
use crate::models;
use crate::output::{Cell, Table, dollars, grouped};

/// Days shown.
const DAYS: i64 = 31;

/// Spending of a day with a model.
#[derive(Debug, Serialize)]
struct Line {
    day: String,
    profile: String,
    model: String,
    calls: u64,
    input_tokens: u64,
    output_tokens: u64,
    cost_micros: Option<u64>,
    unpriced_calls: u64,
    simulated: bool,
}

/// Runs the command.
pub(crate) async fn run(app: &App) -> Result<Code> {
    let llm = models::Setup::new(app, None)?.llm(app)?;
    let now = app.now().as_millis();
    let lines: Vec<Line> = llm
        .ledger()
        .spend(&day_of(now - DAYS * 24 * 3600 * 1000), &day_of(now))
        .await?
        .into_iter()
        .map(|row| Line {
            day: row.day,
            profile: row.profile,
            calls: row.calls,
            input_tokens: row.usage.input(),
            output_tokens: row.usage.output(),
            cost_micros: (row.unpriced_calls < row.calls).then_some(row.cost.0),
            unpriced_calls: row.unpriced_calls,
            simulated: row.model.starts_with(longhaul_llm::SIM_MODEL_PREFIX),
            model: row.model,
        })
        .collect();
    let all = llm.ledger().totals(&longhaul_llm::Scope::all()).await?;
    app.out.list(&lines, None, || {
        let mut table = Table::new(&["DAY", "PROFILE", "MODEL", "CALLS", "IN", "OUT", "COST"]);
        for line in &lines {
            let cost = line.cost_micros.map_or_else(|| "unpriced".to_owned(), dollars);
            table.row(vec![
                Cell::new(&line.day),
                Cell::new(&line.profile),
                Cell::new(&line.model),
                Cell::new(grouped(line.calls)),
                Cell::new(grouped(line.input_tokens)),
                Cell::new(grouped(line.output_tokens)),
                Cell::new(if line.simulated { format!("{cost} (simulated)") } else { cost }),
            ]);
        }
        table
    })?;
    if all.unknown_calls > 0 {
        app.out.warn(format_args!(
            "{} more calls never came to an end that we saw, and may have been billed: up to {}",
            grouped(all.unknown_calls),
            dollars(all.unknown_ceiling.0)
        ));
    }
    let today = jiff::Timestamp::from_millisecond(now)?.to_zoned(jiff::tz::TimeZone::UTC).date();
    let age = llm.prices().age_days(today);
    app.out.note(format_args!("prices are {age} days old; days are UTC"));
    Ok(Code::Ok)
}
