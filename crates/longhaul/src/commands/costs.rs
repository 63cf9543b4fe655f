//! `costs`: what was spent, by day and model, and resolving calls whose end was never seen.

use anyhow::Result;
use longhaul_llm::ledger::{Resolved, UnknownCall, UnknownFilter, Verdict};
use longhaul_llm::{Llm, NanoUsd, Scope};
use longhaul_server::costs::{Costs, DAYS};

use crate::app::App;
use crate::args::{BillVerdict, CostsArgs, CostsCommand, WhichCalls};
use crate::config::{Origin, environment};
use crate::exit::{Code, Failure};
use crate::models;
use crate::output::{Cell, Table, counted, grouped};

/// Runs the command.
pub(crate) async fn run(app: &App, args: &CostsArgs) -> Result<Code> {
    let llm = models::Setup::new(app, None)?.llm(app)?;
    llm.ledger().abandon_dead(app.now().as_millis()).await?;
    match &args.command {
        None => report(app, &llm).await,
        Some(CostsCommand::Unknown { which }) => unknown(app, &llm, which).await,
        Some(CostsCommand::Resolve { which, verdict }) => resolve(app, &llm, which, verdict).await,
        Some(CostsCommand::Decisions) => decisions(app, &llm).await,
    }
}

async fn report(app: &App, llm: &Llm) -> Result<Code> {
    let now = app.now().as_millis();
    let Costs { items: lines, unknown_calls, unknown_ceiling_usd } = Costs::of(llm, DAYS, now).await?;
    app.out.list(&lines, None, || {
        let mut table = Table::new(&["DAY", "PROFILE", "MODEL", "CALLS", "IN", "OUT", "COST"]);
        for line in &lines {
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
    if unknown_calls > 0 {
        app.out.warn(format_args!(
            "{} never came to an end that we saw, and may have been billed: up to {}",
            counted(unknown_calls, "call"),
            unknown_ceiling_usd.short()
        ));
        app.out.hint("list them with longhaul costs unknown, decide with longhaul costs resolve");
    }
    let today = jiff::Timestamp::from_millisecond(now)?.to_zoned(jiff::tz::TimeZone::UTC).date();
    let age = llm.prices().age_days(today);
    app.out.note(format_args!("prices are {} old; days are UTC", counted(age.into(), "day")));
    Ok(Code::Ok)
}

async fn unknown(app: &App, llm: &Llm, which: &WhichCalls) -> Result<Code> {
    let calls = llm.ledger().unknown(filter(app, which)?).await?;
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
        app.out.note("no call may have been billed without an end that we saw");
    }
    Ok(Code::Ok)
}

async fn resolve(app: &App, llm: &Llm, which: &WhichCalls, said: &BillVerdict) -> Result<Code> {
    let filter = filter(app, which)?;
    let calls = llm.ledger().unknown(filter.clone()).await?;
    if calls.is_empty() {
        return Err(Failure::new(Code::NothingMatched, "no matching call may have been billed")
            .hint("list them: longhaul costs unknown")
            .into());
    }
    let now = app.now().as_millis();
    let resolved = match said {
        BillVerdict { ask: true, .. } => ask(app, llm, &calls, now).await?,
        BillVerdict { not_billed: true, .. } => decide(app, llm, filter, Verdict::NotBilled, now).await?,
        BillVerdict { bill: Some(bill), .. } => {
            let verdict = Verdict::Billed(Some(rest_of_bill(llm, &filter, *bill, now).await?));
            decide(app, llm, filter, verdict, now).await?
        }
        BillVerdict { .. } => decide(app, llm, filter, Verdict::Billed(None), now).await?,
    };
    app.out.one(&resolved, || {
        format!(
            "{} decided: {} booked, {} freed",
            counted(resolved.calls, "call"),
            resolved.cost.short(),
            resolved.ceiling.saturating_sub(resolved.cost).short()
        )
    })?;
    Ok(Code::Ok)
}

async fn decide(
    app: &App,
    llm: &Llm,
    filter: UnknownFilter,
    verdict: Verdict,
    now_ms: i64,
) -> Result<Resolved> {
    let user = environment("USER").or_else(|| environment("LOGNAME")).unwrap_or_else(|| "unknown".to_owned());
    let about = words(&filter);
    app.confirm(&format!(
        "record calls that may have been billed ({about}) as {}",
        verdict.as_str().replace('_', " ")
    ))?;
    Ok(llm.ledger().resolve(filter, verdict, (&user, &about), now_ms).await?)
}

/// What the provider's bill leaves for the calls of unknown end, once all that is booked is taken off.
async fn rest_of_bill(llm: &Llm, which: &UnknownFilter, bill: NanoUsd, now_ms: i64) -> Result<NanoUsd> {
    let booked: NanoUsd = match &which.scope {
        Some(scope) => llm.ledger().totals(scope).await?.cost,
        None => {
            let is =
                |wanted: &Option<String>, found: &str| wanted.as_ref().is_none_or(|wanted| wanted == found);
            let rows = llm.ledger().spend("1970-01-01", &longhaul_llm::ledger::day_of(now_ms)).await?;
            let rows = rows.iter().filter(|row| {
                is(&which.day, &row.day) && is(&which.profile, &row.profile) && is(&which.model, &row.model)
            });
            rows.map(|row| row.cost).sum()
        }
    };
    if bill < booked {
        let text = format!("--bill: {bill} is less than the {booked} that is booked for answers");
        return Err(Failure::new(Code::Usage, text)
            .hint("check that the bill covers the same days and profiles, and that the price table is right")
            .into());
    }
    Ok(bill.saturating_sub(booked))
}

/// Batches whose results are still to be had are booked by them.
async fn ask(app: &App, llm: &Llm, calls: &[UnknownCall], now_ms: i64) -> Result<Resolved> {
    let mut sum = Resolved::default();
    for call in calls.iter().filter(|call| call.batch) {
        match llm.book_by_results(call, now_ms).await {
            Ok(Some(resolved)) => {
                sum.calls += resolved.calls;
                sum.ceiling = sum.ceiling.saturating_add(resolved.ceiling);
                sum.cost = sum.cost.saturating_add(resolved.cost);
            }
            Ok(None) => app.out.note(format_args!("batch {} does not exist at {}", call.call, call.profile)),
            Err(error) => app.out.warn(format_args!("batch {}: {error}", call.call)),
        }
    }
    let single = calls.iter().filter(|call| !call.batch).count() as u64;
    if single > 0 {
        app.out.note(format_args!(
            "{} were sent one by one, and no provider reports what happened to such a call; check its usage page and use --bill",
            counted(single, "call")
        ));
    }
    Ok(sum)
}

fn filter(app: &App, which: &WhichCalls) -> Result<UnknownFilter> {
    if let Some(day) = &which.day
        && day.parse::<jiff::civil::Date>().is_err()
    {
        let text = format!("--day: {day:?} is not a day; write it like 2026-11-15");
        return Err(Failure::new(Code::Usage, text).into());
    }
    Ok(UnknownFilter {
        scope: which.run.as_ref().map(Scope::run),
        profile: profile(app)?,
        model: which.model.clone(),
        day: which.day.clone(),
        call: None,
    })
}

/// The profile that the command names; one of the settings is for asking, not for looking.
fn profile(app: &App) -> Result<Option<String>> {
    let named = app.settings.get("llm.profile")?;
    Ok(matches!(named.origin, Origin::Flag(_)).then(|| named.value.clone()))
}

fn words(filter: &UnknownFilter) -> String {
    let UnknownFilter { scope, profile, model, day, .. } = filter;
    let scope = scope.as_ref().map(Scope::to_string);
    let parts = [("scope", &scope), ("profile", profile), ("model", model), ("day", day)];
    let parts: Vec<String> = parts
        .iter()
        .filter_map(|(name, value)| value.as_ref().map(|value| format!("{name} {value}")))
        .collect();
    if parts.is_empty() { "all".to_owned() } else { parts.join(", ") }
}

async fn decisions(app: &App, llm: &Llm) -> Result<Code> {
    let decisions = llm.ledger().decisions().await?;
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
