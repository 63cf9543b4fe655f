//! Calls whose end was never seen: which there are, and what a person or the provider says they cost.

use std::fmt;

use longhaul_llm::file::FileError;
use longhaul_llm::ledger::{Resolved, UnknownCall, UnknownFilter, Verdict, day_of};
use longhaul_llm::{Llm, NanoUsd, Scope};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

/// Which calls of unknown end; all where nothing is named.
#[derive(Debug, Clone, Default, Serialize, Deserialize, IntoParams)]
#[serde(default, deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct WhichCalls {
    /// Only calls of this run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub run: Option<String>,
    /// Only calls of this profile.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub profile: Option<String>,
    /// Only calls to this model.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// Only calls of this day in UTC, such as `2026-11-15`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub day: Option<String>,
}

/// What became of calls of unknown end.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ResolveCosts {
    /// Only calls of this run.
    #[serde(default)]
    pub run: Option<String>,
    /// Only calls of this profile.
    #[serde(default)]
    pub profile: Option<String>,
    /// Only calls to this model.
    #[serde(default)]
    pub model: Option<String>,
    /// Only calls of this day in UTC, such as `2026-11-15`.
    #[serde(default)]
    pub day: Option<String>,
    /// The decision.
    pub verdict: BillVerdict,
    /// With `billed`: the total on the provider's usage page, in dollars. What exceeds the amount already booked is their cost; without
    /// it they cost the most they can have.
    #[serde(default)]
    #[schema(value_type = Option<f64>)]
    pub bill_usd: Option<NanoUsd>,
}

/// A decision about calls of unknown end.
#[derive(Debug, Clone, Copy, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum BillVerdict {
    /// The provider did not bill them.
    NotBilled,
    /// It billed them.
    Billed,
    /// Ask it: the results of a batch say what each request cost.
    Ask,
}

/// What was resolved.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
pub struct ResolvedCosts {
    /// `calls`, and in dollars `ceiling_usd`, which counted against budgets, and `cost_usd`, which is booked instead.
    #[serde(flatten)]
    #[schema(value_type = Object)]
    pub resolved: Resolved,
    /// What could not be resolved, for people.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

/// Why nothing was resolved.
#[derive(Debug)]
pub enum ResolveError {
    /// No matching call may have been billed.
    Nothing,
    /// The bill is less than what is booked for answers.
    BillTooLow {
        /// The bill.
        bill: NanoUsd,
        /// What is booked.
        booked: NanoUsd,
    },
    /// The ledger refuses it, or cannot be read or written.
    Ledger(FileError),
}

impl fmt::Display for ResolveError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nothing => f.write_str("no unresolved call matches"),
            Self::BillTooLow { bill, booked } => {
                write!(f, "{bill} is less than the {booked} that is booked for answers")
            }
            Self::Ledger(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for ResolveError {}

impl From<FileError> for ResolveError {
    fn from(error: FileError) -> Self {
        Self::Ledger(error)
    }
}

impl WhichCalls {
    /// For the ledger.
    pub fn filter(&self) -> UnknownFilter {
        let Self { run, profile, model, day } = self.clone();
        UnknownFilter { scope: run.map(Scope::run), profile, model, day, call: None }
    }
}

/// In the words of the command, for the list of decisions.
impl fmt::Display for WhichCalls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { run, profile, model, day } = self;
        let parts = [("run", run), ("profile", profile), ("model", model), ("day", day)];
        let parts: Vec<String> = parts
            .iter()
            .filter_map(|(name, value)| value.as_ref().map(|value| format!("{name} {value}")))
            .collect();
        f.write_str(if parts.is_empty() { "all" } else { "" })?;
        f.write_str(&parts.join(", "))
    }
}

impl ResolveCosts {
    /// A decision about some calls.
    pub fn new(which: WhichCalls, verdict: BillVerdict, bill_usd: Option<NanoUsd>) -> Self {
        let WhichCalls { run, profile, model, day } = which;
        Self { run, profile, model, day, verdict, bill_usd }
    }

    /// Which calls.
    pub fn which(&self) -> WhichCalls {
        let Self { run, profile, model, day, .. } = self.clone();
        WhichCalls { run, profile, model, day }
    }

    /// Carries the decision out. `who` decided it.
    pub async fn carry_out(&self, llm: &Llm, who: &str, now_ms: i64) -> Result<ResolvedCosts, ResolveError> {
        let which = self.which();
        let filter = which.filter();
        let calls = llm.ledger().unknown(filter.clone()).await?;
        if calls.is_empty() {
            return Err(ResolveError::Nothing);
        }
        let verdict = match (self.verdict, self.bill_usd) {
            (BillVerdict::Ask, _) => return Ok(ask(llm, &calls, now_ms).await),
            (BillVerdict::NotBilled, _) => Verdict::NotBilled,
            (BillVerdict::Billed, None) => Verdict::Billed(None),
            (BillVerdict::Billed, Some(bill)) => {
                Verdict::Billed(Some(rest_of_bill(llm, &filter, bill, now_ms).await?))
            }
        };
        let resolved = llm.ledger().resolve(filter, verdict, (who, &which.to_string()), now_ms).await?;
        Ok(ResolvedCosts { resolved, notes: Vec::new() })
    }
}

/// What the provider's bill leaves for the calls of unknown end, once all that is booked is taken off.
async fn rest_of_bill(
    llm: &Llm,
    which: &UnknownFilter,
    bill: NanoUsd,
    now_ms: i64,
) -> Result<NanoUsd, ResolveError> {
    let booked: NanoUsd = match &which.scope {
        Some(scope) => llm.ledger().totals(scope).await?.cost,
        None => {
            let is =
                |wanted: &Option<String>, found: &str| wanted.as_ref().is_none_or(|wanted| wanted == found);
            let rows = llm.ledger().spend("1970-01-01", &day_of(now_ms)).await?;
            let rows = rows.iter().filter(|row| {
                is(&which.day, &row.day) && is(&which.profile, &row.profile) && is(&which.model, &row.model)
            });
            rows.map(|row| row.cost).sum()
        }
    };
    if bill < booked {
        return Err(ResolveError::BillTooLow { bill, booked });
    }
    Ok(bill.saturating_sub(booked))
}

/// Batches whose results are still to be had are booked by them.
async fn ask(llm: &Llm, calls: &[UnknownCall], now_ms: i64) -> ResolvedCosts {
    let mut told = ResolvedCosts::default();
    let ResolvedCosts { resolved: sum, notes } = &mut told;
    for call in calls.iter().filter(|call| call.batch) {
        match llm.book_by_results(call, now_ms).await {
            Ok(Some(resolved)) => {
                sum.calls += resolved.calls;
                sum.ceiling = sum.ceiling.saturating_add(resolved.ceiling);
                sum.cost = sum.cost.saturating_add(resolved.cost);
            }
            Ok(None) => notes.push(format!("batch {} does not exist at {}", call.call, call.profile)),
            Err(error) => notes.push(format!("batch {}: {error}", call.call)),
        }
    }
    let single = calls.iter().filter(|call| !call.batch).count();
    if single > 0 {
        notes.push(format!(
            "sent one by one, so that no provider reports what happened to them: {single}; check its usage page and tell its bill"
        ));
    }
    told
}
