//! `costs`: what was spent, by day and model.

use anyhow::Result;
use longhaul_server::costs::{Costs, DAYS};

use crate::app::App;
use crate::exit::Code;
use crate::models;
use crate::output::{Cell, Table, counted, dollars, grouped};

/// Runs the command.
pub(crate) async fn run(app: &App) -> Result<Code> {
    let llm = models::Setup::new(app, None)?.llm(app)?;
    let now = app.now().as_millis();
    let Costs { items: lines, unknown_calls, unknown_ceiling_micros } = Costs::of(&llm, DAYS, now).await?;
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
    if unknown_calls > 0 {
        app.out.warn(format_args!(
            "{} never came to an end that we saw, and may have been billed: up to {}",
            counted(unknown_calls, "more call"),
            dollars(unknown_ceiling_micros)
        ));
    }
    let today = jiff::Timestamp::from_millisecond(now)?.to_zoned(jiff::tz::TimeZone::UTC).date();
    let age = llm.prices().age_days(today);
    app.out.note(format_args!("prices are {age} days old; days are UTC"));
    Ok(Code::Ok)
}
