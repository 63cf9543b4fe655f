//! Settlements as columns: many jobs are written by one statement.

use longhaul_queue::job::Removal;
use longhaul_queue::limits::RUNS_KEPT_MAX;
use longhaul_queue::state::{RunOutcome, Settlement};
use longhaul_queue::store::rules::WakeChange;
use longhaul_queue::{Json, State, Timestamp};

use super::error::DbResult;
use super::rows::{JobRow, flag, millis, state_number, stored_count, stored_fence, stored_limit, to_text};
use super::tx::Tx;

/// What becomes of jobs, column by column.
#[derive(Default)]
pub(super) struct Updates {
    seq: Vec<i64>,
    state: Vec<i16>,
    run_at: Vec<Option<i64>>,
    flags: Vec<i32>,
    attempt: Vec<i32>,
    crashes: Vec<i32>,
    throttles: Vec<i32>,
    continues: Vec<i32>,
    parks: Vec<i32>,
    finished_at: Vec<Option<i64>>,
    due_at: Vec<Option<i64>>,
    moved_at: Vec<Option<i64>>,
    park_key: Vec<Option<String>>,
    park: Vec<Option<String>>,
    wake: Vec<Option<String>>,
    error: Vec<Option<String>>,
    data: Vec<Option<String>>,
    result: Vec<Option<String>>,
}

impl Updates {
    pub(super) fn add(
        &mut self,
        row: &JobRow,
        settlement: &Settlement,
        wake: WakeChange,
        removal: Removal,
        now: Timestamp,
    ) -> DbResult<()> {
        let state = settlement.state;
        let due_at = match state {
            State::Scheduled => settlement.run_at,
            State::Parked => settlement.park.as_ref().and_then(|park| park.until),
            State::Succeeded | State::Failed | State::Cancelled => removal.pruned_at(),
            State::Blocked | State::Ready | State::Running => None,
        };
        let error = match (state, &settlement.error) {
            (State::Succeeded, _) => None,
            (_, Some(error)) => Some(to_text("an error", error)?),
            (_, None) => row.error.clone(),
        };
        let wake = match wake {
            WakeChange::Set(wake) => Some(to_text("a signal", &wake)?),
            WakeChange::Keep if !state.is_terminal() => row.wake.clone(),
            WakeChange::Keep | WakeChange::Clear => None,
        };
        let park = settlement.park.as_ref();
        let spent = settlement.spent;
        let text = |value: Option<&Json>| value.map(|value| value.as_str().to_owned());
        self.seq.push(row.seq);
        self.state.push(state_number(state));
        self.run_at.push(millis(settlement.run_at));
        self.flags.push(row.flags);
        self.attempt.push(stored_count(spent.attempt));
        self.crashes.push(stored_count(spent.crashes));
        self.throttles.push(stored_count(spent.throttles));
        self.continues.push(stored_count(spent.continues));
        self.parks.push(stored_count(spent.parks));
        self.finished_at.push(state.is_terminal().then_some(now.as_millis()));
        self.due_at.push(millis(due_at));
        self.moved_at.push((!state.is_terminal()).then_some(now.as_millis()));
        self.park_key.push(park.map(|park| park.key.clone()));
        self.park.push(park.map(|park| to_text("a park", park)).transpose()?);
        self.wake.push(wake);
        self.error.push(error);
        self.data.push(text(settlement.data.as_ref()));
        self.result.push(text(settlement.result.as_ref()));
        Ok(())
    }

    pub(super) async fn write(&self, tx: &Tx<'_>) -> DbResult<()> {
        if self.seq.is_empty() {
            return Ok(());
        }
        let sql = "UPDATE lh_jobs SET state = u_state, run_at = coalesce(u_run_at, run_at), flags = u_flags,
                 attempt = u_attempt, crashes = u_crashes, throttles = u_throttles, continues = u_continues,
                 parks = u_parks, finished_at = u_finished_at, due_at = u_due_at, cancel = false, park_key = u_park_key,
                 park = u_park, wake = u_wake, error = u_error, data = coalesce(u_data, data),
                 result = coalesce(u_result, result), moved_at = u_moved_at
             FROM unnest($1::bigint[], $2::smallint[], $3::bigint[], $4::integer[], $5::integer[], $6::integer[],
                 $7::integer[], $8::integer[], $9::integer[], $10::bigint[], $11::bigint[], $12::text[], $13::text[],
                 $14::text[], $15::text[], $16::text[], $17::text[], $18::bigint[])
                 AS u (u_seq, u_state, u_run_at, u_flags, u_attempt, u_crashes, u_throttles, u_continues, u_parks,
                     u_finished_at, u_due_at, u_park_key, u_park, u_wake, u_error, u_data, u_result, u_moved_at)
             WHERE seq = u_seq";
        let Self { seq, state, run_at, flags, attempt, crashes, throttles, continues, parks, .. } = self;
        let Self { finished_at, due_at, park_key, park, wake, error, data, result, moved_at, .. } = self;
        tx.run(
            sql,
            &[
                seq,
                state,
                run_at,
                flags,
                attempt,
                crashes,
                throttles,
                continues,
                parks,
                finished_at,
                due_at,
                park_key,
                park,
                wake,
                error,
                data,
                result,
                moved_at,
            ],
        )
        .await?;
        Ok(())
    }
}

/// Past runs, column by column.
#[derive(Default)]
pub(super) struct Runs {
    seq: Vec<i64>,
    fence: Vec<i64>,
    worker: Vec<String>,
    started_at: Vec<i64>,
    ended_at: Vec<i64>,
    outcome: Vec<String>,
    error: Vec<Option<String>>,
    usage: Vec<Option<String>>,
    /// Those that have older runs, of which the oldest may have to go.
    grown: Vec<i64>,
}

impl Runs {
    /// Adds the run to the history. A plain success is told by the job row itself, which spares it a row.
    pub(super) fn add(&mut self, row: &mut JobRow, settlement: &Settlement, now: Timestamp) -> DbResult<()> {
        if settlement.outcome == RunOutcome::Done && settlement.usage.is_none() {
            return Ok(());
        }
        self.push(row, settlement.outcome, now)?;
        self.error.push(settlement.error.as_ref().map(|error| to_text("an error", error)).transpose()?);
        self.usage.push(settlement.usage.as_ref().map(|usage| usage.as_str().to_owned()));
        Ok(())
    }

    /// Adds the plain success of a job that is to run again, which its row alone has told.
    pub(super) fn add_success(&mut self, row: &mut JobRow, ended_at: Timestamp) -> DbResult<()> {
        self.push(row, RunOutcome::Done, ended_at)?;
        self.error.push(None);
        self.usage.push(None);
        Ok(())
    }

    fn push(&mut self, row: &mut JobRow, outcome: RunOutcome, ended_at: Timestamp) -> DbResult<()> {
        self.seq.push(row.seq);
        self.fence.push(stored_fence(row.fence));
        self.worker.push(row.worker.clone().unwrap_or_default());
        self.started_at.push(row.started_at.unwrap_or_default().as_millis());
        self.ended_at.push(ended_at.as_millis());
        self.outcome.push(to_text("an outcome", &outcome)?);
        if row.has(flag::RUNS) {
            self.grown.push(row.seq);
        }
        row.flags |= flag::RUNS;
        Ok(())
    }

    pub(super) async fn write(&self, tx: &Tx<'_>) -> DbResult<()> {
        if self.seq.is_empty() {
            return Ok(());
        }
        let Self { seq, fence, worker, started_at, ended_at, outcome, error, usage, grown } = self;
        tx.run(
            "INSERT INTO lh_runs (seq, fence, worker, started_at, ended_at, outcome, error, usage)
             SELECT * FROM unnest($1::bigint[], $2::bigint[], $3::text[], $4::bigint[], $5::bigint[], $6::text[],
                 $7::text[], $8::text[])",
            &[seq, fence, worker, started_at, ended_at, outcome, error, usage],
        )
        .await?;
        if !grown.is_empty() {
            tx.run(
                "DELETE FROM lh_runs r USING unnest($1::bigint[]) AS u (u_seq)
                 WHERE r.seq = u_seq AND r.fence <= (
                     SELECT fence FROM lh_runs WHERE seq = u_seq ORDER BY fence DESC LIMIT 1 OFFSET $2)",
                &[grown, &stored_limit(RUNS_KEPT_MAX)],
            )
            .await?;
        }
        Ok(())
    }
}
