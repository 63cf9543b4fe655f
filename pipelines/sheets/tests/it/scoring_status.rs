//! What is told of a sheet and its chunks: states that follow the units, re-runs, who answered, rows, pace.

use std::time::Duration;

use longhaul_llm::Error;
use longhaul_pipeline::testing::{Halt, MODEL, PROFILE, Point, Side, outages};
use longhaul_pipeline::{Hold, Retry, RunState};
use longhaul_queue::State;
use longhaul_sheets::SheetSettings;
use longhaul_sheets::settings::{ModelName, Work};
use longhaul_sim::Faults;
use serde_json::json;

use crate::scoring::{Desk, settings, texts};

/// Answers of a wrong shape, for the first tries.
fn wrong_at_first(tries: u32) -> Faults {
    Faults { rate_schema_break: 1.0, calm_after: Some(tries), ..Faults::default() }
}

#[tokio::test(start_paused = true)]
async fn a_chunk_whose_blanks_the_last_pass_answered_is_completed() {
    let desk = Desk::new(wrong_at_first(5), &texts(10)).await;
    let work = Work { unit_retries: 3, chunk_retries: 0, fill_rounds: 1, ..settings().work };
    let (id, status) = desk.score(&SheetSettings { work, ..settings() }).await;
    assert_eq!((status.state, status.units.failed), (RunState::Completed, 0), "{status:?}");
    assert_eq!((status.chunks.completed, status.chunks.failed), (1, 0), "{status:?}");
    let chunk = desk.chunks(&id).await.remove(0);
    assert_eq!((chunk.state, &chunk.last_error, chunk.retries), (State::Succeeded, &None, 0), "{chunk:?}");
    let refused = desk.found(&id).await.retry(Retry::Part(0)).await.unwrap_err();
    assert!(refused.to_string().contains("chunk 1 is succeeded"), "{refused}");
}

#[tokio::test(start_paused = true)]
async fn a_retry_of_one_chunk_asks_and_pays_for_nothing_else() {
    let mut rows = texts(100);
    for row in [3, 73] {
        rows[row] = format!("[[sim:refuse]] {row}");
    }
    let desk = Desk::new(Faults::default(), &rows).await;
    // With one failed unit a chunk fails in the first case, and has blanks in the second.
    for failed_share_max in [0.0, 0.2] {
        let work = Work { failed_share_max, chunk_retries: 0, fill_rounds: 0, ..settings().work };
        let limit = Some(100 - (failed_share_max * 10.0) as u64);
        let (id, status) = desk.score(&SheetSettings { work, limit, ..settings() }).await;
        assert_eq!((status.state, status.units.failed), (RunState::PartlyFailed, 4), "{status:?}");
        let (before, executed) = (desk.chunks(&id).await, desk.core.stats().executed);
        let retried = desk.found(&id).await.retry(Retry::Part(0)).await.unwrap();
        assert_eq!(retried, 2);
        let worker = desk.work(&id).await;
        desk.until(&id, |status| status.is_over() && status.exported).await;
        worker.drain().await;
        let after = desk.chunks(&id).await;
        let asked = |chunk: usize| after[chunk].asked - before[chunk].asked;
        assert!(asked(0) >= 2, "{after:?}");
        assert_eq!((asked(1), desk.core.stats().executed - executed), (0, asked(0)));
        // All that failed is another matter.
        desk.found(&id).await.retry(Retry::Failed).await.unwrap();
        let worker = desk.work(&id).await;
        desk.until(&id, |status| status.is_over() && status.exported).await;
        worker.drain().await;
        assert!(desk.chunks(&id).await[1].asked > before[1].asked);
    }
}

#[tokio::test(start_paused = true)]
async fn failed_units_are_counted_once_however_often_a_chunk_runs() {
    for chunk_retries in [0, 2] {
        let desk = Desk::new(wrong_at_first(100), &texts(5)).await;
        let work = Work { unit_retries: 0, chunk_retries, fill_rounds: 0, ..settings().work };
        let (id, status) = desk.score(&SheetSettings { work, ..settings() }).await;
        assert_eq!((status.state, status.units.failed), (RunState::Failed, 10), "{status:?}");
        assert_eq!(status.units.processed_rows, 5);
        assert_eq!(desk.core.stats().executed, 10 * (u64::from(chunk_retries) + 1));
        let chunk = desk.chunks(&id).await.remove(0);
        assert_eq!((chunk.failed, chunk.retries), (10, chunk_retries), "{chunk:?}");
        let progress = desk.sheets.queue().get(id.job(0)).await.unwrap().progress.unwrap();
        assert_eq!((progress.done, progress.total), (10, Some(10)));
    }
}

#[tokio::test(start_paused = true)]
async fn the_first_model_is_asked_before_the_answers_of_the_other_are_looked_up() {
    let named = |model: &str| ModelName { profile: PROFILE.into(), model: model.into() };
    let desk = Desk::new(wrong_at_first(3), &texts(3)).await;
    let work = Work { unit_retries: 3, chunk_retries: 0, fill_rounds: 0, ..settings().work };
    let large = SheetSettings { model: named("sim-large"), work: work.clone(), ..settings() };
    let (_, status) = desk.score(&large).await;
    assert_eq!((status.state, desk.core.stats().executed), (RunState::Completed, 6 * 4));
    // Two tries are in vain; then the other's answers are known, and it is not asked.
    let work = Work { unit_retries: 1, ..work };
    let both = SheetSettings { fallback: Some(named("sim-large")), work, ..settings() };
    let (id, status) = desk.score(&both).await;
    assert_eq!((status.state, status.units.cached), (RunState::Completed, 6), "{status:?}");
    assert_eq!(desk.core.stats().executed, 6 * 4 + 6 * 2);
    let by: Vec<_> = status.answered_by.iter().map(|by| (by.model.as_str(), by.units)).collect();
    assert_eq!(by, [(MODEL, 0), ("sim-large", 6)]);
    let stored = desk.db().read(|connection| {
        let sql = "SELECT DISTINCT profile || '/' || model FROM score_units WHERE sheet =
                   (SELECT max(seq) FROM score_sheets)";
        Ok(connection.query_row(sql, [], |row| row.get::<_, String>(0))?)
    });
    assert_eq!(stored.await.unwrap(), format!("{PROFILE}/sim-large"));
    assert_eq!(desk.chunks(&id).await[0].by_fallback, 6);
    // On a good day nobody but the first answers, whatever is known of the other.
    let desk = Desk::new(Faults::default(), &texts(3)).await;
    desk.score(&SheetSettings { model: named("sim-large"), ..settings() }).await;
    let both = SheetSettings { fallback: Some(named("sim-large")), ..settings() };
    let (_, status) = desk.score(&both).await;
    let by: Vec<_> = status.answered_by.iter().map(|by| (by.model.as_str(), by.units)).collect();
    assert_eq!((status.units.cached, by), (0, vec![(MODEL, 6), ("sim-large", 0)]));
}

#[tokio::test(start_paused = true)]
async fn rows_pace_and_the_last_change_are_told() {
    let rows: Vec<String> = texts(100).iter().map(|text| format!("[[sim:slow 10s]] {text}")).collect();
    let desk = Desk::new(Faults::default(), &rows).await;
    let work = Work { concurrency: 10, ..settings().work };
    let id = desk.make(&SheetSettings { work, ..settings() }).await;
    let made = desk.status(&id).await;
    assert_eq!((made.units.processed_rows, made.eta_seconds), (0, None));
    let worker = desk.work(&id).await;
    let status = desk.until(&id, |status| status.units.answered >= 80).await;
    // Ten at once, each in ten seconds.
    let (left, eta) = (status.units.total - status.units.answered, status.eta_seconds.unwrap());
    assert!((left * 2 / 3..=left * 3 / 2).contains(&eta), "{eta} s for {left}");
    assert!((30..60).contains(&status.units.processed_rows), "{status:?}");
    assert!(status.updated_at > made.updated_at);
    let status = desk.ended(&id).await;
    worker.drain().await;
    assert_eq!((status.units.processed_rows, status.eta_seconds), (100, None));
    let chunk = serde_json::to_value(&desk.chunks(&id).await[1]).unwrap();
    assert_eq!(
        [&chunk["chunk"], &chunk["first_row"], &chunk["last_row"], &chunk["processed_rows"]],
        [&json!(2), &json!(52), &json!(101), &json!(50)],
        "as people count, with the head above"
    );
    assert!(chunk["updated_at"].is_number() || chunk["updated_at"].is_string(), "{chunk}");
}

#[tokio::test(start_paused = true)]
async fn an_outage_holds_a_sheet_which_goes_on_by_itself_and_leaves_no_blank() {
    for error in outages() {
        let desk = Desk::new(Faults::default(), &texts(300)).await;
        let id = desk.make(&settings()).await;
        desk.double.halt_at(Halt { point: Point::Complete, nth: 90, side: Side::After });
        let worker = desk.work(&id).await;
        desk.double.halted().await;
        let set = |error: Option<&Error>| {
            for point in [Point::Complete, Point::Models] {
                desk.double.fail(point, error.cloned());
            }
        };
        set(Some(&error));
        desk.double.go_on();
        let status = desk.until(&id, |status| status.state == RunState::Held).await;
        assert_eq!((status.held, status.is_over()), (Some(Hold::Outage), false), "{status:?}");
        tokio::time::sleep(Duration::from_secs(180)).await;
        assert_eq!(desk.status(&id).await.units.failed, 0);
        set(None);
        let status = desk.ended(&id).await;
        worker.drain().await;
        assert_eq!((status.state, status.units.failed), (RunState::Completed, 0), "{status:?}");
        desk.all_right(&id, &[]).await;
        let spent = desk.spent(&id).await;
        assert_eq!(spent.unknown_calls > 0, error.maybe_billed, "{spent:?}");
    }
}
