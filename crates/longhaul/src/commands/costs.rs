//! `costs`: what was spent, by day and model, and resolving calls whose end was never seen.

use anyhow::Result;
use longhaul_api::Listed;
use longhaul_api::bills::{BillVerdict, ResolveCosts, ResolveError, ResolvedCosts, WhichCalls};
use longhaul_api::costs::{Costs, DAYS};
use longhaul_llm::ledger::{Decision, UnknownCall, is_day};
use longhaul_llm::{Llm, NanoUsd};
use longhaul_queue::Error;
use reqwest::Method;

use super::run::named_profile;
use crate::app::App;
use crate::args::{BillArgs, CostsArgs, CostsCommand, WhichCallsArgs};
use crate::config::environment;
use crate::exit::{Code, Failure};
use crate::output::{Cell, Table, counted, grouped};
use crate::remote::{RemoteRuns, refused};
use crate::{models, store};

/// Runs the command.
pub(crate) async fn run(app: &App, args: &CostsArgs) -> Result<Code> {
    let books = Books::open(app).await?;
    match &args.command {
        None => report(app, &books).await,
        Some(CostsCommand::Unknown { which }) => unknown(app, &books, which).await,
        Some(CostsCommand::Resolve { which, verdict }) => resolve(app, &books, which, verdict).await,
        Some(CostsCommand::Decisions) => decisions(app, &books).await,
    }
}

/// The books, here or at a server.
enum Books {
    Here(Box<Llm>, i64),
    Server(RemoteRuns),
}

impl Books {
    async fn open(app: &App) -> Result<Self> {
        if let Some(server) = store::remote(&app.settings)? {
            return Ok(Self::Server(RemoteRuns::new(server)));
        }
        let (llm, now) = (models::Setup::new(app, None)?.llm(app)?, app.now().as_millis());
        llm.ledger().abandon_dead(now).await?;
        Ok(Self::Here(Box::new(llm), now))
    }

    async fn costs(&self) -> Result<Costs> {
        match self {
            Self::Here(llm, now) => Ok(Costs::of(llm, DAYS, *now).await?),
            Self::Server(server) => Ok(server.api().get(&["costs"], &[]).await?),
        }
    }

    async fn unknown(&self, which: &WhichCalls) -> Result<Vec<UnknownCall>> {
        match self {
            Self::Here(llm, _) => Ok(llm.ledger().unknown(which.filter()).await?),
            Self::Server(server) => {
                let WhichCalls { run, profile, model, day } = which;
                let fields = [("run", run), ("profile", profile), ("model", model), ("day", day)];
                let query: Vec<(&str, String)> =
                    fields.into_iter().filter_map(|(name, value)| Some((name, value.clone()?))).collect();
                let listed = server.api().get(&["costs", "unknown"], &query).await;
                let listed: Listed<UnknownCall> = listed.map_err(refused)?;
                Ok(listed.items)
            }
        }
    }

    async fn resolve(&self, decision: &ResolveCosts) -> Result<ResolvedCosts> {
        match self {
            Self::Here(llm, now) => {
                let user = environment("USER").or_else(|| environment("LOGNAME"));
                let resolved = decision.carry_out(llm, user.as_deref().unwrap_or("unknown"), *now).await;
                resolved.map_err(|error| match error {
                    ResolveError::Nothing => nothing_matched(),
                    ResolveError::BillTooLow { .. } => bill_refused(&error),
                    ResolveError::Ledger(error) => error.into(),
                })
            }
            Self::Server(server) => {
                let resolved = server.api().send(Method::POST, &["costs", "resolve"], Some(decision)).await;
                resolved.map_err(|error| match error {
                    Error::NotFound(_) => nothing_matched(),
                    Error::Invalid(text) if decision.bill_usd.is_some() => bill_refused(&text),
                    error => refused(error),
                })
            }
        }
    }

    async fn decisions(&self) -> Result<Vec<Decision>> {
        match self {
            Self::Here(llm, _) => Ok(llm.ledger().decisions().await?),
            Self::Server(server) => {
                let listed: Listed<Decision> = server.api().get(&["costs", "decisions"], &[]).await?;
                Ok(listed.items)
            }
        }
    }
}

const BILL_HINT: &str =
    "check that the bill covers the same days and profiles, and that the price table is right";

fn bill_refused(why: &dyn std::fmt::Display) -> anyhow::Error {
    Failure::new(Code::Usage, format!("--bill: {why}")).hint(BILL_HINT).into()
}

fn nothing_matched() -> anyhow::Error {
    Failure::new(Code::NothingMatched, "no unresolved call matches")
        .hint("list them: longhaul costs unknown")
        .into()
}

async fn report(app: &App, books: &Books) -> Result<Code> {
    let costs = books.costs().await?;
    let Costs { items: lines, unknown_calls, unknown_ceiling_usd } = &costs;
    app.out.report(&costs, lines, || {
        let mut table = Table::new(&["DAY", "PROFILE", "MODEL", "CALLS", "IN", "OUT", "COST"]);
        for line in lines {
            let cost = line.cost();
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
    if lines.is_empty() {
        app.out.note("no calls are booked");
    }
    if *unknown_calls > 0 {
        app.out.warn(format_args!(
            "{} with no known outcome may have been billed: up to {}",
            counted(*unknown_calls, "call"),
            unknown_ceiling_usd.short()
        ));
        app.out.hint("list them with longhaul costs unknown, decide with longhaul costs resolve");
    }
    if let Books::Here(llm, now) = books {
        let today = jiff::Timestamp::from_millisecond(*now)?.to_zoned(jiff::tz::TimeZone::UTC).date();
        let age = llm.prices().age_days(today);
        app.out.note(format_args!("prices are {} old; days are UTC", counted(age.into(), "day")));
    }
    Ok(Code::Ok)
}

async fn unknown(app: &App, books: &Books, which: &WhichCallsArgs) -> Result<Code> {
    let calls = books.unknown(&which_calls(app, which)?).await?;
    app.out.list(&calls, None, || {
        let mut table = Table::new(&["DAY", "PROFILE", "MODEL", "REQUESTS", "AT MOST", "CALL"]);
        for call in &calls {
            let most = call.ceiling.map_or_else(|| "unpriced".to_owned(), NanoUsd::short);
            table.row(vec![
                Cell::new(&call.day),
                Cell::new(&call.profile),
                Cell::new(&call.model),
                Cell::new(grouped(call.requests)),
                Cell::new(most),
                Cell::new(if call.batch { format!("{} (batch)", call.call) } else { call.call.clone() }),
            ]);
        }
        table
    })?;
    if calls.is_empty() {
        app.out.note("there are no unresolved calls");
    }
    Ok(Code::Ok)
}

async fn resolve(app: &App, books: &Books, which: &WhichCallsArgs, said: &BillArgs) -> Result<Code> {
    let which = which_calls(app, which)?;
    if books.unknown(&which).await?.is_empty() {
        return Err(nothing_matched());
    }
    let (verdict, word) = match said {
        BillArgs { ask: true, .. } => (BillVerdict::Ask, None),
        BillArgs { not_billed: true, .. } => (BillVerdict::NotBilled, Some("not billed")),
        BillArgs { .. } => (BillVerdict::Billed, Some("billed")),
    };
    if let Some(word) = word {
        app.confirm(&format!("record calls that may have been billed ({which}) as {word}"))?;
    }
    let told = books.resolve(&ResolveCosts::new(which, verdict, said.bill)).await?;
    let resolved = &told.resolved;
    app.out.one(&told, || {
        format!(
            "{} decided: {} booked, {} freed",
            counted(resolved.calls, "call"),
            resolved.cost.short(),
            resolved.ceiling.saturating_sub(resolved.cost).short()
        )
    })?;
    told.notes.iter().for_each(|note| app.out.note(note));
    Ok(Code::Ok)
}

fn which_calls(app: &App, which: &WhichCallsArgs) -> Result<WhichCalls> {
    if let Some(day) = which.day.as_ref().filter(|day| !is_day(day)) {
        let text = format!("--day: {day:?} is not a day; write it like 2026-11-15");
        return Err(Failure::new(Code::Usage, text).into());
    }
    let WhichCallsArgs { run, model, day } = which;
    Ok(WhichCalls { run: run.clone(), profile: named_profile(app)?, model: model.clone(), day: day.clone() })
}

async fn decisions(app: &App, books: &Books) -> Result<Code> {
    let decisions = books.decisions().await?;
    let now = app.now();
    app.out.list(&decisions, None, || {
        let mut table = Table::new(&["DECIDED", "BY", "VERDICT", "ABOUT", "CALLS", "AT MOST", "BOOKED"]);
        for decision in &decisions {
            let at = longhaul_queue::Timestamp::from_millis(decision.decided_at);
            table.row(vec![
                Cell::new(app.out.list_time(at, now)),
                Cell::new(&decision.decided_by),
                Cell::new(decision.verdict.replace('_', " ")),
                Cell::new(&decision.about),
                Cell::new(grouped(decision.resolved.calls)),
                Cell::new(decision.resolved.ceiling.short()),
                Cell::new(decision.resolved.cost.short()),
            ]);
        }
        table
    })?;
    if decisions.is_empty() {
        app.out.note("nothing was decided yet; longhaul costs unknown lists what can be");
    }
    Ok(Code::Ok)
}
