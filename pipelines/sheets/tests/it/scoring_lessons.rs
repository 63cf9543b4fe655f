//! What went wrong for those who ran such a pipeline before, one test each.

use longhaul_pipeline::testing::PROFILE;
use longhaul_queue::testing::soon;
use std::time::Duration;

use longhaul_llm::cache::CacheMode;
use longhaul_pipeline::{Hold, Retry, RunState};
use longhaul_queue::{Clock as _, State};
use longhaul_sheets::SheetSettings;
use longhaul_sheets::settings::{ModelName, Work};
use longhaul_sheets::tables::{
    AnsweredBy, CACHE_ENTRIES_MAX, CACHE_TTL, CacheKey, ScoredUnit, UnitEnd, UnitRow, UnitState,
};
use longhaul_sim::Faults;
use serde_json::json;
use tokio::time::Instant;

use crate::scoring::{Desk, settings, texts};

/// Answers of a wrong shape, for the first tries.
fn wrong_at_first(tries: u32) -> Faults {
    Faults { rate_schema_break: 1.0, calm_after: Some(tries), ..Faults::default() }
}

#[tokio::test(start_paused = true)]
async fn a_unit_that_fails_after_the_producer_has_ended_is_asked_again() {
    let desk = Desk::new(wrong_at_first(2), &texts(10)).await;
    let (id, status) = desk.score(&settings()).await;
    assert_eq!((status.state, status.units.written), (RunState::Completed, 20));
    assert_eq!(desk.core.stats().executed, 60);
    desk.all_right(&id, &[]).await;
}

#[tokio::test(start_paused = true)]
async fn full_queues_do_not_wait_for_each_other() {
    let desk = Desk::new(wrong_at_first(3), &texts(300)).await;
    let work = Work { concurrency: 1, chunk_rows: 5_000, ..settings().work };
    let (id, status) = desk.score(&SheetSettings { work, ..settings() }).await;
    assert_eq!((status.state, status.units.written), (RunState::Completed, 600));
    desk.all_right(&id, &[]).await;
}

#[tokio::test(start_paused = true)]
async fn an_idle_buffer_is_written_by_the_timer() {
    let mut rows = texts(3);
    rows[1] = "[[sim:slow 3000s]] Slow one".to_owned();
    let desk = Desk::new(Faults::default(), &rows).await;
    let id = desk.make(&settings()).await;
    let began = Instant::now();
    let worker = desk.work(&id).await;
    let status = desk.until(&id, |status| status.units.written == 4).await;
    assert_eq!((status.state, status.units.total), (RunState::Running, 6));
    let first = desk.grid.state().writes[0].0;
    assert!(first - began < Duration::from_secs(60), "it waited for the slow one: {:?}", first - began);
    assert_eq!(desk.ended(&id).await.state, RunState::Completed);
    worker.drain().await;
    desk.all_right(&id, &[]).await;
}

#[tokio::test(start_paused = true)]
async fn a_sink_that_is_down_for_half_a_minute_loses_nothing() {
    let desk = Desk::new(Faults::default(), &texts(60)).await;
    desk.grid.state().down_until = Some(Instant::now() + Duration::from_secs(30));
    let (id, status) = desk.score(&settings()).await;
    assert_eq!((status.state, status.units.written), (RunState::Completed, 120), "{status:?}");
    assert_eq!(desk.core.stats().executed, 120, "answers were kept meanwhile");
    desk.all_right(&id, &[]).await;
}

#[tokio::test(start_paused = true)]
async fn one_bad_unit_stays_blank_with_its_reason_and_is_all_that_is_tried_again() {
    let mut rows = texts(100);
    rows[41] = "[[sim:refuse]] Something nobody answers".to_owned();
    let desk = Desk::new(Faults::default(), &rows).await;
    let (id, status) = desk.score(&settings()).await;
    assert_eq!(
        (status.state, status.units.failed, status.units.written),
        (RunState::PartlyFailed, 2, 198),
        "{status:?}"
    );
    desk.all_right(&id, &[42]).await;
    let seq = desk.sheet(&id).await.seq;
    let failed = desk.sheets.tables().open_units(seq, UnitState::Failed, (0, 1_000), None, 10).await.unwrap();
    assert!(
        failed.iter().all(|unit| unit.row == 42 && unit.reason.as_ref().unwrap().contains("refused")),
        "{failed:?}"
    );
    let before = desk.core.stats().executed;
    let retried = desk.found(&id).await.retry(Retry::Failed).await.unwrap();
    assert_eq!(retried, 2);
    let worker = desk.work(&id).await;
    let status = desk.until(&id, |status| status.is_over() && status.exported).await;
    worker.drain().await;
    assert_eq!((status.units.failed, desk.core.stats().executed - before), (2, 2), "exactly the failed ones");
}

#[tokio::test(start_paused = true)]
async fn a_key_that_is_refused_stops_the_sheet_early_and_it_goes_on_with_a_good_one() {
    let desk = Desk::with_key("good", &texts(500)).await;
    desk.double.set_key("bad");
    let id = desk.make(&settings()).await;
    let worker = desk.work(&id).await;
    let status = desk.ended(&id).await;
    worker.drain().await;
    assert_eq!((status.state, status.held), (RunState::Held, Some(Hold::Auth)), "{status:?}");
    assert!(desk.core.stats().calls <= 60, "{:?}", desk.core.stats());
    desk.double.set_key("good");
    assert!(desk.found(&id).await.resume().await.unwrap() >= 1);
    let worker = desk.work(&id).await;
    assert_eq!(desk.ended(&id).await.state, RunState::Completed);
    worker.drain().await;
    desk.all_right(&id, &[]).await;
}

#[tokio::test(start_paused = true)]
async fn a_corrupt_cache_is_no_cache() {
    let desk = Desk::new(Faults::default(), &texts(5)).await;
    let (id, _) = desk.score(&settings()).await;
    desk.found(&id).await.remove().await.unwrap();
    let spoil = |tx: &mut longhaul_stores::sqlite::Transaction<'_, '_>| {
        tx.connection().execute(
            "UPDATE score_cache SET cells = '[0.1, oh' WHERE key IN (SELECT key FROM score_cache LIMIT 5)",
            [],
        )?;
        Ok(tx.connection().execute("UPDATE score_cache SET cells = '[1]' WHERE cells NOT LIKE '%oh'", [])?)
    };
    assert_eq!(desk.db().transaction(spoil).await.unwrap(), 5);
    let (id, status) = desk.score(&settings()).await;
    assert_eq!((status.state, status.units.cached, desk.core.stats().executed), (RunState::Completed, 0, 20));
    desk.all_right(&id, &[]).await;
}

#[tokio::test(start_paused = true)]
async fn answers_of_failed_units_are_never_kept() {
    let desk = Desk::new(wrong_at_first(100), &texts(2)).await;
    let work = Work { unit_retries: 0, chunk_retries: 0, fill_rounds: 0, ..settings().work };
    let (_, status) = desk.score(&SheetSettings { work, ..settings() }).await;
    assert_eq!((status.state, status.units.failed), (RunState::Failed, 4));
    let kept = desk.db().read(|connection| {
        Ok(connection.query_row("SELECT count(*) FROM score_cache", [], |row| row.get::<_, i64>(0))?)
    });
    assert_eq!(kept.await.unwrap(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_crash_between_the_answer_and_the_write_asks_nothing_again() {
    let desk = Desk::new(Faults::default(), &texts(40)).await;
    desk.grid.state().hangs = true;
    let id = desk.make(&settings()).await;
    let worker = desk.work(&id).await;
    desk.until(&id, |status| status.units.scored == 80).await;
    desk.kill(worker).await;
    assert!(desk.grid.state().cells.is_empty());
    desk.grid.state().hangs = false;
    let worker = desk.work(&id).await;
    let status = desk.ended(&id).await;
    worker.drain().await;
    assert_eq!((status.state, desk.core.stats().executed), (RunState::Completed, 80));
    desk.all_right(&id, &[]).await;
}

#[tokio::test(start_paused = true)]
async fn a_limit_of_three_means_four_runs_of_a_unit() {
    let desk = Desk::new(wrong_at_first(100), &texts(1)).await;
    let work = Work { unit_retries: 3, chunk_retries: 0, fill_rounds: 0, ..settings().work };
    let (_, status) = desk.score(&SheetSettings { work, ..settings() }).await;
    assert_eq!((status.state, desk.core.stats().executed), (RunState::Failed, 2 * 4));
}

#[tokio::test(start_paused = true)]
async fn a_limit_of_three_means_four_runs_of_a_chunk() {
    let desk = Desk::new(Faults::default(), &texts(1)).await;
    desk.grid.state().down_until = Some(Instant::now() + Duration::from_secs(30 * 24 * 3600));
    let work = Work { chunk_retries: 3, fill_rounds: 0, ..settings().work };
    let id = desk.make(&SheetSettings { work, ..settings() }).await;
    let worker = desk.work(&id).await;
    let chunks = soon(async {
        loop {
            let chunks = desk.chunks(&id).await;
            if chunks[0].state == State::Failed {
                return chunks;
            }
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    })
    .await;
    assert!(chunks[0].last_error.as_ref().unwrap().contains("503 from the sheet"), "{chunks:?}");
    let tries = desk.grid.state().tries;
    assert!(tries >= 4 * 5, "five tries a run: {tries}");
    // Once it takes cells again, that chunk alone is run again.
    desk.grid.state().down_until = None;
    desk.found(&id).await.retry(Retry::Part(0)).await.unwrap();
    let status = desk.until(&id, |status| status.state == RunState::Completed).await;
    worker.drain().await;
    assert_eq!((status.units.written, desk.core.stats().executed), (2, 2));
}

#[tokio::test(start_paused = true)]
async fn a_sheet_that_refuses_is_held_with_its_answers_and_written_once_it_is_mended() {
    let desk = Desk::new(Faults::default(), &texts(200)).await;
    desk.grid.state().refused = Some("the sheet is not shared".to_owned());
    let id = desk.make(&settings()).await;
    let worker = desk.work(&id).await;
    let status = desk.ended(&id).await;
    assert_eq!((status.state, status.held), (RunState::Held, Some(Hold::Sink)), "{status:?}");
    desk.grid.state().refused = None;
    desk.found(&id).await.resume().await.unwrap();
    let status = desk.until(&id, |status| status.state == RunState::Completed).await;
    worker.drain().await;
    assert_eq!((status.units.written, desk.core.stats().executed), (400, 400));
    desk.all_right(&id, &[]).await;
}

#[tokio::test(start_paused = true)]
async fn a_stop_while_many_answers_wait_for_the_sink_ends_the_run() {
    // More answers of an earlier run than are fetched at once, and units that nobody has asked for yet.
    let desk = Desk::new(Faults::default(), &texts(1_500)).await;
    desk.grid.state().hangs = true;
    let work = Work { chunk_rows: 5_000, chunk_retries: 0, fill_rounds: 0, ..settings().work };
    let id = desk.make(&SheetSettings { work, ..settings() }).await;
    let worker = desk.work(&id).await;
    desk.until(&id, |status| status.units.scored >= 2_200).await;
    desk.kill(worker).await;
    {
        let mut state = desk.grid.state();
        (state.hangs, state.refused) = (false, Some("the sheet is not shared".to_owned()));
    }
    let worker = desk.work(&id).await;
    assert_eq!(desk.ended(&id).await.held, Some(Hold::Sink));
    desk.grid.state().refused = None;
    desk.found(&id).await.resume().await.unwrap();
    desk.until(&id, |status| status.state == RunState::Completed).await;
    worker.drain().await;
    desk.all_right(&id, &[]).await;
}

#[tokio::test(start_paused = true)]
async fn nobody_is_asked_where_only_known_answers_are_wanted() {
    let desk = Desk::new(Faults::default(), &texts(4)).await;
    let work = Work { chunk_retries: 0, fill_rounds: 0, ..settings().work };
    let only = SheetSettings { cache: CacheMode::Only, work, ..settings() };
    let (_, status) = desk.score(&only).await;
    assert_eq!((status.state, status.units.failed, desk.core.stats().calls), (RunState::Failed, 8, 0));
    let desk = Desk::new(Faults::default(), &texts(4)).await;
    desk.score(&SheetSettings { cache: CacheMode::Off, ..settings() }).await;
    let kept = desk.db().read(|connection| {
        Ok(connection.query_row("SELECT count(*) FROM score_cache", [], |row| row.get::<_, i64>(0))?)
    });
    assert_eq!(kept.await.unwrap(), 0);
}

#[tokio::test(start_paused = true)]
async fn the_other_model_is_asked_when_the_first_gives_nothing_usable() {
    let desk = Desk::new(wrong_at_first(100), &texts(3)).await;
    let fallback = Some(ModelName { profile: PROFILE.into(), model: "sim-large".into() });
    let work = Work { unit_retries: 1, chunk_retries: 0, fill_rounds: 0, ..settings().work };
    let (id, status) = desk.score(&SheetSettings { work, fallback, ..settings() }).await;
    assert_eq!((status.units.failed, desk.core.stats().executed), (6, 6 * (2 + 2)), "{status:?}");
    let seq = desk.sheet(&id).await.seq;
    let failed = desk.sheets.tables().open_units(seq, UnitState::Failed, (0, 9), None, 9).await.unwrap();
    let trail = failed[0].reason.as_ref().unwrap();
    assert_eq!(
        (trail.matches("sim-small: ").count(), trail.matches("sim-large: ").count()),
        (2, 2),
        "{trail}"
    );
    let desk = Desk::new(Faults::default(), &["[[sim:refuse]] x".to_owned()]).await;
    let fallback = Some(ModelName { profile: PROFILE.into(), model: "sim-large".into() });
    let work = Work { unit_retries: 3, chunk_retries: 0, fill_rounds: 0, ..settings().work };
    desk.score(&SheetSettings { work, fallback, ..settings() }).await;
    assert_eq!(desk.core.stats().executed, 4, "one that refuses is not asked twice");
}

#[tokio::test(start_paused = true)]
async fn what_is_still_blank_at_the_end_is_gone_over_once_more() {
    let desk = Desk::new(wrong_at_first(5), &texts(10)).await;
    let work = Work { unit_retries: 3, failed_share_max: 1.0, fill_rounds: 1, ..settings().work };
    let (id, status) = desk.score(&SheetSettings { work, ..settings() }).await;
    // Four tries in the chunk, two in the pass after it.
    assert_eq!((status.state, desk.core.stats().executed), (RunState::Completed, 20 * 6), "{status:?}");
    assert_eq!((status.units.written, status.units.failed), (20, 0));
    desk.all_right(&id, &[]).await;
}

#[tokio::test(start_paused = true)]
async fn chunks_run_one_after_another_or_beside_each_other_as_asked() {
    for parallel in [1, 3] {
        let rows: Vec<String> = texts(200).iter().map(|text| format!("[[sim:slow 10s]] {text}")).collect();
        let desk = Desk::new(Faults::default(), &rows).await;
        let work = Work { parallel_chunks: parallel, chunk_rows: 50, ..settings().work };
        let id = desk.make(&SheetSettings { work, ..settings() }).await;
        let worker = desk.work(&id).await;
        desk.until(&id, |status| status.chunks.running == u64::from(parallel)).await;
        let most = std::sync::atomic::AtomicU64::new(0);
        let status = desk
            .until(&id, |status| {
                most.fetch_max(status.chunks.running, std::sync::atomic::Ordering::Relaxed);
                status.is_over()
            })
            .await;
        worker.drain().await;
        assert_eq!((status.state, status.chunks.completed), (RunState::Completed, 4));
        assert!(most.into_inner() <= u64::from(parallel));
        desk.all_right(&id, &[]).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_row_that_somebody_edits_meanwhile_is_left_alone() {
    let desk = Desk::new(Faults::default(), &texts(30)).await;
    let id = desk.make(&settings()).await;
    desk.grid.state().rows[7][0] = "Something else entirely".to_owned();
    let worker = desk.work(&id).await;
    let status = desk.ended(&id).await;
    worker.drain().await;
    assert_eq!(
        (status.state, status.units.edited, status.units.written),
        (RunState::Completed, 2, 58),
        "{status:?}"
    );
    assert!(!desk.grid.state().cells.keys().any(|(row, _)| *row == 7));
}

#[tokio::test(start_paused = true)]
async fn a_cancel_keeps_what_was_written() {
    let mut rows = texts(200);
    for row in rows.iter_mut().skip(100) {
        row.insert_str(0, "[[sim:slow 3000s]] ");
    }
    let desk = Desk::new(Faults::default(), &rows).await;
    let id = desk.make(&SheetSettings { cache: CacheMode::Off, ..settings() }).await;
    let worker = desk.work(&id).await;
    desk.until(&id, |status| status.units.written >= 200).await;
    desk.found(&id).await.cancel().await.unwrap();
    let status = desk.ended(&id).await;
    worker.drain().await;
    assert_eq!(status.state, RunState::Cancelled);
    assert!(desk.grid.state().cells.len() >= 100 * 12);
}

#[tokio::test(start_paused = true)]
async fn the_cache_forgets_after_a_day_and_holds_ten_thousand() {
    let desk = Desk::new(Faults::default(), &texts(1)).await;
    let id = desk.make(&settings()).await;
    let (tables, seq, now) = (desk.sheets.tables(), desk.sheet(&id).await.seq, desk.clock.now());
    let key = |number: u64| {
        let mut key = [0; 32];
        key[..8].copy_from_slice(&number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes());
        CacheKey(key)
    };
    let unit = |number: u64| UnitRow {
        chunk: 0,
        row: number,
        block: 0,
        row_units: 1,
        end: UnitEnd::Scored(ScoredUnit {
            cells: vec![json!(0.5)],
            by: AnsweredBy { profile: "p".to_owned(), model: "m".to_owned(), fallback: false },
            cost: None,
            cached: false,
            asked: 1,
            key: Some(key(number)),
            written: true,
        }),
    };
    for part in 0..12 {
        let units = (part * 1_000..(part + 1) * 1_000).map(unit).collect();
        tables.settle(seq, units, now + Duration::from_secs(part)).await.unwrap();
    }
    let count = desk.db().read(|connection| {
        Ok(connection.query_row("SELECT count(*) FROM score_cache", [], |row| row.get::<_, u64>(0))?)
    });
    // One put in sixty-four sweeps.
    assert!(count.await.unwrap() <= CACHE_ENTRIES_MAX + 1_000);
    let found = async |number: u64, now| {
        let found = tables.cached(vec![(key(number), 1)], now).await.unwrap();
        (found.get(&key(number)).is_some(), found.expired)
    };
    assert_eq!(found(5, now).await, (false, 0), "the oldest went first");
    assert_eq!(found(11_999, now).await, (true, 0));
    assert_eq!(found(11_999, now + CACHE_TTL + Duration::from_secs(20)).await, (false, 1));
}
