//! `bench`: prints how fast the engine is on this machine and store. The laboratory measures it.

use anyhow::Result;
use longhaul_lab::bench::{self, Goal, Measurement, Request, Unit};

use super::lab;
use crate::app::App;
use crate::args::BenchArgs;
use crate::commands::interrupts::Interrupts;
use crate::exit::{Code, Failure};
use crate::output::{Cell, Table, grouped};
use crate::store;

/// Runs the command.
pub(crate) async fn run(app: &App, args: &BenchArgs) -> Result<Code> {
    if args.child {
        bench::child().await?;
        return Ok(Code::Ok);
    }
    if cfg!(debug_assertions) {
        app.out.warn("this is a debug build; measure with: cargo run --release -- bench");
    }
    // It refuses --server.
    store::location(&app.settings)?;
    let request = Request { quick: args.quick, only: args.only.clone(), own: args.own.map(Into::into) };
    let mut interrupts = Interrupts::new()?;
    match bench::run(&lab::host(app)?, &request, interrupts.next()).await? {
        Some(measurements) => report(app, &measurements, args.raw),
        None => Err(Failure::new(Code::Interrupted, "interrupted").into()),
    }
}

fn report(app: &App, measurements: &[Measurement], singles: bool) -> Result<Code> {
    app.out.list(measurements, None, || {
        let mut table = Table::new(&["MEASURE", "LEVEL", "OURS", "SPREAD", "RAW", "RATIO", "GOAL", ""]);
        for measurement in measurements {
            table.row(row(measurement));
            for single in measurement.singles.iter().filter(|_| singles) {
                table.row(vec![
                    Cell::new("  single"),
                    Cell::new(""),
                    Cell::quantity(quantity(measurement.unit, single.ours)),
                    Cell::new(""),
                    Cell::quantity(
                        single.raw.map_or_else(String::new, |raw| quantity(measurement.unit, raw)),
                    ),
                ]);
            }
        }
        table
    })?;
    Ok(Code::Ok)
}

fn row(measurement: &Measurement) -> Vec<Cell> {
    let unit = measurement.unit;
    let (goal, verdict) = match measurement.goal {
        None => (String::new(), ""),
        Some(goal) => (target(goal, unit), if goal.is_met(measurement) { "met" } else { "short" }),
    };
    let spread = measurement.spread().map(|(least, most)| format!("[{}–{}]", short(least), short(most)));
    vec![
        Cell::new(&measurement.name),
        Cell::new(measurement.level),
        Cell::quantity(quantity(unit, measurement.ours())),
        Cell::quantity(spread.unwrap_or_default()),
        Cell::quantity(measurement.raw().map_or_else(String::new, |raw| quantity(unit, raw))),
        Cell::quantity(measurement.ratio().map_or_else(String::new, |ratio| format!("{ratio:.2}"))),
        Cell::quantity(goal),
        Cell::new(verdict),
    ]
}

fn quantity(unit: Unit, value: f64) -> String {
    match unit {
        Unit::PerSecond => format!("{} /s", grouped(value.round() as u64)),
        Unit::Millis => format!("{value:.2} ms"),
        Unit::Bytes => format!("{} B", grouped(value.round() as u64)),
        Unit::Megabytes => format!("{value:.1} MB"),
        Unit::Ratio => format!("{value:.2}"),
    }
}

fn target(goal: Goal, unit: Unit) -> String {
    match goal {
        Goal::Ratio(ratio) => format!("≥ {ratio:.2} raw"),
        Goal::RatioAtMost(ratio) => format!("≤ {ratio:.2} raw"),
        Goal::AtLeast(value) => format!("≥ {}", quantity(unit, value)),
        Goal::AtMost(value) => format!("≤ {}", quantity(unit, value)),
    }
}

fn short(value: f64) -> String {
    if value >= 1_000.0 { grouped(value.round() as u64) } else { format!("{value:.2}") }
}
