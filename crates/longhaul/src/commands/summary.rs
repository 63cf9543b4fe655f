//! What a run did and cost, in words: the same for the runs of every pipeline.

use longhaul_pipeline::{Hold, RunState, Status};

use crate::app::App;
use crate::output::{counted, grouped, short_count};

/// How the ledger says that a cap cannot be kept.
const NO_PRICE: &str = "has no price";

/// What a run does. One that could go on does nothing while no worker serves it.
pub(crate) fn state_word(status: &Status, served: bool) -> String {
    match (status.standing.state, status.standing.hold) {
        (RunState::Held, Some(hold)) => format!("{}: {hold}", RunState::Held),
        (RunState::Running, _) if !served => "waits for a worker".to_owned(),
        (state, _) => state.to_string(),
    }
}

/// What it cost.
pub(crate) fn cost(status: &Status) -> String {
    let simulated = if status.standing.simulated { " (simulated)" } else { "" };
    format!("{}{simulated}", status.spent.spent())
}

/// Lines about money and tokens.
pub(crate) fn spending(status: &Status) -> Vec<String> {
    let spent = &status.spent;
    let mut cost = spent.spent();
    if let Some(estimated) = status.estimated() {
        cost += &format!(" (estimated {estimated})");
    }
    let usage = &spent.usage;
    let mut lines = vec![format!(
        "cost         {cost} · {} · {} tokens in, {} out",
        counted(spent.calls, "call"),
        short_count(usage.input()),
        short_count(usage.output()),
    )];
    let counts = [
        (spent.cached, "from the cache"),
        (spent.throttled, "times throttled"),
        (spent.retried, "retried"),
        (spent.repaired, "asked again for shape"),
    ];
    let counts: Vec<String> = counts
        .iter()
        .filter(|(count, _)| *count > 0)
        .map(|(count, word)| format!("{} {word}", grouped(*count)))
        .collect();
    if !counts.is_empty() {
        lines.push(format!("calls        {}", counts.join(" · ")));
    }
    if spent.unknown_calls > 0 {
        lines.push(format!(
            "unknown      {} with no known outcome may have been billed: up to {}",
            counted(spent.unknown_calls, "call"),
            spent.unknown_ceiling.short(),
        ));
    }
    lines
}

/// What a run came to, on stderr: why it is held, and what a person can do about it or about what failed.
pub(crate) fn tell_state(app: &App, status: &Status) {
    let (id, standing) = (&status.id, &status.standing);
    if standing.simulated {
        app.out.note("answers and prices are made up: the simulator was asked");
    }
    if let Some(hold) = standing.hold {
        let message = standing.message.as_deref().unwrap_or_default();
        app.out.warn(format_args!("{id} is held ({hold}): {message}"));
    }
    if let Some(hint) = way_out(status) {
        app.out.hint(hint);
    }
}

/// What a person can do about a run that is not complete.
pub(crate) fn way_out(status: &Status) -> Option<String> {
    let (id, standing) = (&status.id, &status.standing);
    if let Some(hold) = standing.hold {
        return Some(way_out_of(hold, standing.message.as_deref().unwrap_or_default(), id));
    }
    match standing.state {
        RunState::Cancelled => {
            Some(format!("go on after all with the same command, or longhaul runs retry {id}"))
        }
        _ if standing.units.failed > 0 => Some(format!(
            "see why with longhaul runs show {id}; ask again with the same command or longhaul runs retry {id}"
        )),
        _ => None,
    }
}

fn way_out_of(hold: Hold, message: &str, id: &str) -> String {
    let resume = format!("longhaul runs resume {id}");
    match hold {
        Hold::Budget => budget_way_out(message, &resume),
        Hold::Auth => format!(
            "set the key (longhaul keys ls shows where it is looked for), then repeat the command, or {resume}"
        ),
        Hold::Quota => format!("when the account has room again, repeat the command, or {resume}"),
        Hold::Outage => format!("it goes on by itself; {resume} tries at once"),
        Hold::BatchLimit => format!(
            "send it again: {resume}; or decide: longhaul runs resolve {id} --one-by-one (at the full price) or --drop"
        ),
        Hold::Ambiguous => {
            format!("decide: longhaul runs resolve {id} --wait, --resubmit, --one-by-one or --drop")
        }
        Hold::Sink => format!("go on once the cause is gone: {resume}"),
    }
}

/// `resume` is the command that lets it go on.
fn budget_way_out(message: &str, resume: &str) -> String {
    if message.contains(NO_PRICE) {
        return format!(
            "name the model's price in a file, and that file in llm.prices (docs/models.md), then {resume}; \
             or let its calls pass uncounted: {resume} --allow-unpriced"
        );
    }
    // The first word of a refusal is the name of what has the cap.
    let scope = message.split(' ').next().and_then(|word| word.split_once(':'));
    match scope.map(|(kind, _)| kind) {
        Some("day") => format!(
            "the cap of a day is the setting budget.day: raise it, or wait for the next day (UTC), then {resume}"
        ),
        Some("tag") => format!("the cap of a tag is the setting budget.tags: raise it, then {resume}"),
        _ => format!(
            "allow more: {resume} --max-cost USD; or bound answers with --max-tokens, since a call is booked at its longest"
        ),
    }
}
