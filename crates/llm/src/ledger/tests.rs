use super::*;
use crate::money::CostRange;

const NOW: i64 = 1_763_190_000_000; // 2025-11-15
const DAY_MS: i64 = 24 * 60 * 60 * 1_000;

fn ledger() -> Ledger {
    Ledger::new(LlmFile::in_memory().expect("memory opens"))
}

fn run() -> Scope {
    Scope::run("1")
}

fn scopes() -> Vec<Scope> {
    vec![run(), Scope::day(NOW), Scope::all()]
}

/// A reservation of so many nano-dollars by the run `fence` of job `j`.
fn call(name: &str, fence: u64, ceiling: u64) -> Reservation {
    Reservation {
        call: name.into(),
        job: "j".into(),
        fence: Some(fence),
        scopes: scopes(),
        ceiling: Some(NanoUsd(ceiling)),
        requests: 1,
        profile: "p".into(),
        model: "m".into(),
    }
}

fn batch(name: &str, requests: u64, ceiling: u64) -> Reservation {
    Reservation { fence: None, requests, ..call(name, 0, ceiling) }
}

fn spent(cost: u64) -> Spent {
    let usage = Usage { fresh_in: 10, out: 5, ..Usage::default() };
    Spent { usage, cost: Some(NanoUsd(cost)), answers: 1 }
}

fn part(name: &str, cost: u64, share: u64) -> PartSpent {
    PartSpent { part: name.into(), spent: spent(cost), ceiling_share: Some(NanoUsd(share)) }
}

/// Calls, cost, open calls and ceiling, unknown calls and ceiling: of all scopes alike.
async fn check(ledger: &Ledger, expected: [u64; 6]) {
    for scope in scopes() {
        let totals = ledger.totals(&scope).await.expect("it answers");
        let found = [
            totals.calls,
            totals.cost.0,
            totals.open_calls,
            totals.open_ceiling.0,
            totals.unknown_calls,
            totals.unknown_ceiling.0,
        ];
        assert_eq!(found, expected, "{scope}");
    }
}

async fn reserve(ledger: &Ledger, reservation: Reservation) -> Result<Reserved, LedgerError> {
    ledger.reserve(reservation, NOW).await
}

async fn reserved(ledger: &Ledger, reservation: Reservation) {
    assert_eq!(reserve(ledger, reservation).await.expect("it fits"), Reserved::New);
}

#[tokio::test]
async fn a_call_is_booked_at_its_ceiling_and_then_at_its_cost() {
    let ledger = ledger();
    reserved(&ledger, call("a", 1, 100)).await;
    reserved(&ledger, call("b", 1, 50)).await;
    check(&ledger, [0, 0, 2, 150, 0, 0]).await;
    ledger.settle("a", spent(70)).await.expect("it is open");
    check(&ledger, [1, 70, 1, 50, 0, 0]).await;
    assert!(ledger.release("b", NOW).await.expect("it answers"));
    check(&ledger, [1, 70, 0, 0, 0, 0]).await;
    assert!(!ledger.release("b", NOW).await.expect("it answers"), "once");
    let twice = ledger.settle("a", spent(70)).await.expect_err("it is settled");
    assert!(matches!(twice, LedgerError::NotReserved(_)), "{twice}");
    check(&ledger, [1, 70, 0, 0, 0, 0]).await;
    let totals = ledger.totals(&run()).await.expect("it answers");
    assert_eq!((totals.answers, totals.usage), (1, spent(0).usage));
}

#[tokio::test]
async fn a_cost_above_its_ceiling_is_booked_as_it_is() {
    let ledger = ledger();
    reserved(&ledger, call("a", 1, 100)).await;
    ledger.settle("a", spent(120)).await.expect("it is open");
    check(&ledger, [1, 120, 0, 0, 0, 0]).await;
}

#[tokio::test]
async fn what_a_dead_run_left_open_is_unknown_until_somebody_knows() {
    let ledger = ledger();
    reserved(&ledger, call("a1", 1, 100)).await;
    reserved(&ledger, call("b1", 1, 10)).await;
    check(&ledger, [0, 0, 2, 110, 0, 0]).await;
    let other = Reservation { job: "other".into(), ..call("o", 1, 1) };
    reserved(&ledger, other).await;
    reserved(&ledger, call("a2", 2, 100)).await;
    check(&ledger, [0, 0, 2, 101, 2, 110]).await;
    // The first run was not dead after all, only slow.
    ledger.settle("a1", spent(60)).await.expect("it is unknown");
    check(&ledger, [1, 60, 2, 101, 1, 10]).await;
    assert!(ledger.release("b1", NOW).await.expect("it answers"));
    check(&ledger, [1, 60, 2, 101, 0, 0]).await;
    assert!(ledger.mark_unknown("a2", NOW).await.expect("it answers"));
    assert!(!ledger.mark_unknown("a2", NOW).await.expect("it answers"), "once");
    check(&ledger, [1, 60, 1, 1, 1, 100]).await;
    assert!(ledger.mark_unknown("o", NOW).await.expect("it answers"));
    check(&ledger, [1, 60, 0, 0, 2, 101]).await;
    let spend = ledger.spend("2025-11-15", "2025-11-15").await.expect("it answers");
    assert_eq!(
        (spend.len(), spend[0].cost.0, spend[0].unknown_calls, spend[0].unknown_ceiling.0),
        (1, 60, 2, 101)
    );
}

#[tokio::test]
async fn a_cap_counts_what_is_spent_open_and_unknown() {
    let ledger = ledger();
    ledger.set_cap(&run(), Some(NanoUsd(100))).await.expect("it is set");
    reserved(&ledger, call("spent", 1, 30)).await;
    ledger.settle("spent", spent(20)).await.expect("it is open");
    reserved(&ledger, call("unknown", 1, 30)).await;
    reserved(&ledger, call("open", 2, 40)).await;
    let refusal = match reserve(&ledger, call("more", 2, 11)).await {
        Err(LedgerError::OverBudget(refusal)) => *refusal,
        other => panic!("{other:?}"),
    };
    let [cap, spent, unknown, open, ceiling] = [100, 20, 30, 40, 11].map(NanoUsd);
    assert_eq!(refusal, OverBudget { scope: run(), cap, spent, open, unknown, ceiling });
    assert!(
        refusal.may_fit_later() && refusal.to_string().contains("run:1 has a cap of $0.0000001"),
        "{refusal}"
    );
    check(&ledger, [1, 20, 1, 40, 1, 30]).await;
    reserved(&ledger, call("fits", 2, 10)).await;
    // A name that is booked needs no room a second time.
    assert_eq!(reserve(&ledger, call("fits", 2, 10)).await.expect("it is booked"), Reserved::Again);
    assert!(reserve(&ledger, call("one", 2, 1)).await.is_err());
    reserved(&ledger, call("free", 2, 0)).await;
    ledger.set_cap(&run(), None).await.expect("it is lifted");
    reserved(&ledger, call("one", 2, 1_000)).await;
    ledger.set_cap(&Scope::all(), Some(NanoUsd(5))).await.expect("it is set");
    match reserve(&ledger, call("two", 2, 1)).await {
        Err(LedgerError::OverBudget(refusal)) => {
            assert!(refusal.scope == Scope::all() && !refusal.may_fit_later());
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_refused_run_still_tells_of_the_one_before() {
    let ledger = ledger();
    reserved(&ledger, call("a", 1, 60)).await;
    ledger.set_cap(&run(), Some(NanoUsd(100))).await.expect("it is set");
    match reserve(&ledger, call("b", 2, 60)).await {
        Err(LedgerError::OverBudget(refusal)) => {
            assert_eq!((refusal.open.0, refusal.unknown.0, refusal.may_fit_later()), (0, 60, false));
        }
        other => panic!("{other:?}"),
    }
    check(&ledger, [0, 0, 0, 0, 1, 60]).await;
}

#[tokio::test]
async fn a_cap_is_not_kept_without_a_price_unless_somebody_allows_that() {
    let ledger = ledger();
    let unpriced = |name: &str| Reservation { ceiling: None, ..call(name, 1, 0) };
    reserved(&ledger, unpriced("a")).await;
    ledger.settle("a", Spent { cost: None, ..spent(0) }).await.expect("it is open");
    ledger.set_cap(&Scope::all(), Some(NanoUsd::dollars(5))).await.expect("it is set");
    let error = reserve(&ledger, unpriced("b")).await.expect_err("there is a cap").to_string();
    for words in
        ["all has a cap of $5.00, but m has no price", "llm.prices", "local = true", "--allow-unpriced"]
    {
        assert!(error.contains(words), "{error}");
    }
    // The cap is not the run's own, and yet it is the run that is allowed to.
    ledger.allow_unpriced(&run(), true).await.expect("it is set");
    reserved(&ledger, unpriced("b")).await;
    check(&ledger, [1, 0, 1, 0, 0, 0]).await;
    let totals = ledger.totals(&run()).await.expect("it answers");
    assert_eq!((totals.unpriced_calls, totals.spent().as_str()), (1, "unpriced"));
}

#[tokio::test]
async fn a_batch_is_settled_piece_by_piece_and_each_piece_once() {
    let ledger = ledger();
    reserved(&ledger, batch("b", 4, 400)).await;
    assert_eq!(reserve(&ledger, batch("b", 4, 400)).await.expect("it is booked"), Reserved::Again);
    // A later run of its job reserves something else: a batch outlives runs.
    reserved(&ledger, call("x", 9, 7)).await;
    assert!(ledger.release("x", NOW).await.expect("it answers"));
    check(&ledger, [0, 0, 4, 400, 0, 0]).await;
    assert!(ledger.settle_part("b", part("1", 60, 100)).await.expect("it is open"));
    assert!(!ledger.settle_part("b", part("1", 60, 100)).await.expect("it is open"), "once");
    check(&ledger, [1, 60, 3, 300, 0, 0]).await;
    let again = vec![part("1", 60, 100), part("2", 70, 100), part("2", 70, 100)];
    assert_eq!(ledger.settle_parts("b", again).await.expect("it is open"), 1);
    check(&ledger, [2, 130, 2, 200, 0, 0]).await;
    assert!(ledger.close("b", NOW).await.expect("it is open"));
    check(&ledger, [2, 130, 0, 0, 0, 0]).await;
    // The job died before it could say so, and does it all again.
    for name in ["1", "2", "3"] {
        assert!(!ledger.settle_part("b", part(name, 60, 100)).await.expect("it is closed"));
    }
    assert!(!ledger.close("b", NOW).await.expect("it is closed"));
    assert!(matches!(reserve(&ledger, batch("b", 4, 400)).await, Err(LedgerError::Closed(_))));
    assert!(matches!(ledger.settle("b", spent(1)).await, Err(LedgerError::Closed(_))));
    check(&ledger, [2, 130, 0, 0, 0, 0]).await;
    let error = ledger.settle_part("none", part("1", 1, 1)).await.expect_err("nobody reserved it");
    assert!(matches!(error, LedgerError::NotReserved(_)));
}

#[tokio::test]
async fn the_rest_of_a_batch_may_be_unknown() {
    let ledger = ledger();
    reserved(&ledger, batch("b", 3, 300)).await;
    assert!(ledger.mark_unknown("b", NOW).await.expect("it answers"));
    check(&ledger, [0, 0, 0, 0, 3, 300]).await;
    assert_eq!(reserve(&ledger, batch("b", 3, 300)).await.expect("it is found again"), Reserved::Again);
    check(&ledger, [0, 0, 3, 300, 0, 0]).await;
    ledger.settle_part("b", part("1", 10, 100)).await.expect("it is open");
    assert!(ledger.mark_unknown("b", NOW).await.expect("it answers"));
    check(&ledger, [1, 10, 0, 0, 2, 200]).await;
    // Shares that leave a little over are freed with the last part.
    reserved(&ledger, batch("c", 1, 100)).await;
    ledger.settle_part("c", part("1", 10, 99)).await.expect("it is open");
    assert!(ledger.close("c", NOW).await.expect("it is open"));
    check(&ledger, [2, 20, 0, 0, 2, 200]).await;
    // One that was never made can be tried again by its name; one with results cannot lose them.
    reserved(&ledger, batch("d", 2, 50)).await;
    assert!(ledger.release("d", NOW).await.expect("it answers"));
    reserved(&ledger, batch("d", 2, 50)).await;
    ledger.settle_part("d", part("1", 1, 25)).await.expect("it is open");
    assert!(ledger.release("d", NOW).await.expect("it answers"));
    assert!(!ledger.settle_part("d", part("1", 1, 25)).await.expect("it is closed"));
    check(&ledger, [3, 21, 0, 0, 2, 200]).await;
    // Closed ones are forgotten in the end.
    reserved(&ledger, batch("e", 1, 1)).await;
    ledger.close("e", NOW + 90 * DAY_MS).await.expect("it is open");
    let gone = ledger.settle_part("d", part("1", 1, 25)).await.expect_err("it is long ago");
    assert!(matches!(gone, LedgerError::NotReserved(_)));
}

#[tokio::test]
async fn events_are_counted_and_seen_at_once_by_who_counted() {
    let ledger = ledger();
    for (event, times) in
        [(Event::Cached, 3), (Event::Throttled, 2), (Event::Retried, 1), (Event::Repaired, 4)]
    {
        (0..times).for_each(|_| ledger.count(&run(), event));
    }
    let totals = ledger.totals(&run()).await.expect("it answers");
    assert_eq!([totals.cached, totals.throttled, totals.retried, totals.repaired], [3, 2, 1, 4]);
    ledger.count(&run(), Event::Cached);
    assert_eq!(ledger.totals(&run()).await.expect("it answers").cached, 4);
    assert_eq!(ledger.totals(&Scope::all()).await.expect("it answers"), Totals::default());
}

#[tokio::test]
async fn forgetting_a_run_leaves_the_day_and_nothing_of_the_run() {
    let ledger = ledger();
    ledger.set_cap(&run(), Some(NanoUsd(1_000))).await.expect("it is set");
    for name in ["settled", "unknown", "open"] {
        reserved(&ledger, call(name, 1, 100)).await;
    }
    ledger.settle("settled", spent(60)).await.expect("it is open");
    ledger.mark_unknown("unknown", NOW).await.expect("it answers");
    reserved(&ledger, batch("batch", 2, 10)).await;
    ledger.close("batch", NOW).await.expect("it is open");
    ledger.count(&run(), Event::Cached);
    assert!(ledger.forget(&run()).await.expect("it answers"));
    assert!(!ledger.forget(&run()).await.expect("it answers"));
    assert_eq!(ledger.scope(&run()).await.expect("it answers"), None);
    ledger.settle("open", spent(70)).await.expect("it is under way");
    let day = ledger.totals(&Scope::day(NOW)).await.expect("it answers");
    assert_eq!((day.calls, day.cost.0, day.unknown_calls, day.open_calls), (2, 130, 1, 0));
    assert_eq!(ledger.scope(&run()).await.expect("it answers"), None, "it is not made anew");
    let rows = |connection: &rusqlite::Connection| {
        Ok(connection.query_row("SELECT count(*) FROM calls", [], |row| row.get::<_, i64>(0))?)
    };
    assert_eq!(
        ledger.file.read(rows).await.expect("it answers"),
        1,
        "what may have been billed waits for a decision"
    );
    let all = UnknownFilter::default();
    ledger.resolve(all, Verdict::NotBilled, ("me", "all"), NOW).await.expect("it answers");
    assert_eq!(ledger.totals(&Scope::day(NOW)).await.expect("it answers").unknown_calls, 0);
    assert_eq!(ledger.file.read(rows).await.expect("it answers"), 0);
    // A run of the same name later is another run.
    reserved(&ledger, call("new", 1, 1)).await;
    assert_eq!(ledger.totals(&run()).await.expect("it answers").open_calls, 1);
}

#[tokio::test]
async fn scopes_are_listed_and_spending_is_told_by_day_profile_and_model() {
    let ledger = ledger();
    let days = [NOW, NOW, NOW + DAY_MS, NOW + 2 * DAY_MS];
    for (number, (now_ms, model)) in days.into_iter().zip(["m1", "m2", "m1", "m1"]).enumerate() {
        let name = number.to_string();
        let scopes =
            vec![Scope::run(number), Scope::day(now_ms), Scope::tag("100%"), Scope::all(), Scope::all()];
        let reservation = Reservation { model: model.into(), scopes, ..call(&name, 1, 100) };
        ledger.reserve(reservation, now_ms).await.expect("it fits");
        ledger.settle(&name, spent(10)).await.expect("it is open");
    }
    let names = |listed: Vec<ScopeTotals>| {
        listed.into_iter().map(|found| found.scope.to_string()).collect::<Vec<_>>()
    };
    let days = names(ledger.list("day:").await.expect("it answers"));
    assert_eq!(days, ["day:2025-11-15", "day:2025-11-16", "day:2025-11-17"]);
    assert_eq!(names(ledger.list("run:").await.expect("it answers")).len(), 4);
    assert_eq!(names(ledger.list("tag:100%").await.expect("it answers")), ["tag:100%"]);
    assert_eq!(names(ledger.list("%").await.expect("it answers")).len(), 0);
    assert_eq!(ledger.totals(&Scope::all()).await.expect("it answers").calls, 4, "named twice, counted once");
    let spend = ledger.spend("2025-11-15", "2025-11-16").await.expect("it answers");
    let told: Vec<_> =
        spend.iter().map(|line| (line.day.as_str(), line.model.as_str(), line.cost.0)).collect();
    assert_eq!(told, [("2025-11-15", "m1", 10), ("2025-11-15", "m2", 10), ("2025-11-16", "m1", 10)]);
    assert!(ledger.spend("yesterday", "2025-11-16").await.is_err());
}

#[tokio::test]
async fn nonsense_is_refused_or_bounded() {
    let ledger = ledger();
    let long = "x".repeat(300);
    let table = [
        call("", 1, 1),
        call(&long, 1, 1),
        call("a", u64::MAX, 1),
        call("a", 1, u64::MAX),
        Reservation { requests: 0, ..call("a", 1, 1) },
        Reservation { scopes: vec![], ..call("a", 1, 1) },
        Reservation { scopes: vec![Scope::all(); 17], ..call("a", 1, 1) },
        Reservation { scopes: vec![Scope::tag(&long)], ..call("a", 1, 1) },
    ];
    for reservation in table {
        match reserve(&ledger, reservation.clone()).await {
            Err(LedgerError::File(error)) => assert_eq!(error.kind, crate::file::FileErrorKind::Invalid),
            other => panic!("{reservation:?}: {other:?}"),
        }
    }
    let usage = Usage { fresh_in: u64::MAX, out: u64::MAX, ..Usage::default() };
    for name in ["a", "b", "c"] {
        reserved(&ledger, call(name, 1, AMOUNT_MAX.0)).await;
        let senseless = Spent { usage, cost: Some(NanoUsd(u64::MAX)), answers: u64::MAX };
        ledger.settle(name, senseless).await.expect("it is open");
    }
    check(&ledger, [3, 3 * AMOUNT_MAX.0, 0, 0, 0, 0]).await;
}

/// Nothing is lost, and nothing stays, over any order of events: the sums equal those of a plain model.
#[tokio::test]
async fn any_order_of_entries_keeps_the_sums() {
    let mut random = fastrand::Rng::with_seed(11);
    let ledger = ledger();
    let mut open: Vec<(String, u64)> = Vec::new();
    let mut unknown: Vec<(String, u64)> = Vec::new();
    let (mut calls, mut cost) = (0, 0);
    for step in 0..600 {
        let pick = |random: &mut fastrand::Rng, list: &mut Vec<(String, u64)>| {
            (!list.is_empty()).then(|| list.swap_remove(random.usize(..list.len())))
        };
        match random.u8(0..6) {
            0 | 1 => {
                let (name, ceiling) = (format!("c{step}"), random.u64(0..1_000));
                reserved(&ledger, call(&name, 1, ceiling)).await;
                open.push((name, ceiling));
            }
            2 => {
                if let Some((name, ceiling)) = pick(&mut random, &mut open) {
                    assert!(ledger.mark_unknown(&name, NOW).await.expect("it answers"));
                    unknown.push((name, ceiling));
                }
            }
            3 => {
                let list = if random.bool() { &mut open } else { &mut unknown };
                if let Some((name, _)) = pick(&mut random, list) {
                    assert!(ledger.release(&name, NOW).await.expect("it answers"));
                }
            }
            _ => {
                let list = if random.bool() { &mut open } else { &mut unknown };
                if let Some((name, ceiling)) = pick(&mut random, list) {
                    ledger.settle(&name, spent(ceiling / 2)).await.expect("it is there");
                    calls += 1;
                    cost += ceiling / 2;
                }
            }
        }
    }
    let sum = |list: &[(String, u64)]| (list.len() as u64, list.iter().map(|(_, ceiling)| ceiling).sum());
    let ((open_calls, open), (unknown_calls, unknown)) = (sum(&open), sum(&unknown));
    check(&ledger, [calls, cost, open_calls, open, unknown_calls, unknown]).await;
}

/// Three calls and the rest of a batch, of which nobody knows how they ended.
async fn with_unknown() -> Ledger {
    let ledger = ledger();
    for (name, ceiling) in [("a", 100), ("b", 300), ("c", 600)] {
        reserved(&ledger, call(name, 1, ceiling)).await;
        ledger.mark_unknown(name, NOW).await.expect("it answers");
    }
    reserved(&ledger, batch("batch", 4, 400)).await;
    ledger.settle_part("batch", part("1", 60, 100)).await.expect("it is open");
    ledger.mark_unknown("batch", NOW).await.expect("it answers");
    check(&ledger, [1, 60, 0, 0, 6, 1_300]).await;
    ledger
}

#[tokio::test]
async fn the_cost_is_a_range_until_calls_of_unknown_end_are_decided() {
    let ledger = with_unknown().await;
    let totals = ledger.totals(&run()).await.expect("it answers");
    assert_eq!(totals.cost_range(), CostRange { low: NanoUsd(60), high: NanoUsd(1_360) });
    assert_eq!(totals.spent(), "$0.000000060 to $0.000002");
    let calls = ledger.unknown(UnknownFilter::default()).await.expect("it answers");
    let told: Vec<_> = calls.iter().map(|call| (call.call.as_str(), call.requests, call.batch)).collect();
    assert_eq!(told, [("a", 1, false), ("b", 1, false), ("batch", 3, true), ("c", 1, false)]);
    let other = UnknownFilter { model: Some("other".into()), ..UnknownFilter::default() };
    assert_eq!(ledger.unknown(other.clone()).await.expect("it answers"), []);
    let nothing = ledger.resolve(other, Verdict::NotBilled, ("me", "other"), NOW).await.expect("it answers");
    assert_eq!((nothing, ledger.decisions().await.expect("it answers").len()), (Resolved::default(), 0));
}

#[tokio::test]
async fn a_decision_books_what_it_says_frees_the_rest_and_is_written_down() {
    let one = UnknownFilter { call: Some("a".into()), ..UnknownFilter::default() };
    let ours =
        UnknownFilter { scope: Some(run()), day: Some("2025-11-15".into()), ..UnknownFilter::default() };
    let sum = |calls, ceiling, cost| Resolved { calls, ceiling: NanoUsd(ceiling), cost: NanoUsd(cost) };
    let table = [
        (one.clone(), Verdict::NotBilled, sum(1, 100, 0), [1, 60, 0, 0, 5, 1_200]),
        (one, Verdict::Billed(None), sum(1, 100, 100), [2, 160, 0, 0, 5, 1_200]),
        (ours.clone(), Verdict::NotBilled, sum(6, 1_300, 0), [1, 60, 0, 0, 0, 0]),
        (ours.clone(), Verdict::Billed(Some(NanoUsd(101))), sum(6, 1_300, 101), [7, 161, 0, 0, 0, 0]),
        (ours, Verdict::Billed(None), sum(6, 1_300, 1_300), [7, 1_360, 0, 0, 0, 0]),
    ];
    for (filter, verdict, resolved, sums) in table {
        let ledger = with_unknown().await;
        ledger.set_cap(&run(), Some(NanoUsd(1_360))).await.expect("it is set");
        assert!(reserve(&ledger, call("next", 1, 1)).await.is_err(), "unknown calls count at their ceiling");
        let who = ("ann", "run 1");
        assert_eq!(
            ledger.resolve(filter, verdict, who, NOW).await.expect("it answers"),
            resolved,
            "{verdict:?}"
        );
        check(&ledger, sums).await;
        let room = 1_360 - sums[1] - sums[5];
        assert_eq!(reserve(&ledger, call("next", 1, 1)).await.is_ok(), room > 0, "{verdict:?}");
        let decisions = ledger.decisions().await.expect("it answers");
        let decision = Decision {
            decided_at: NOW,
            decided_by: "ann".into(),
            verdict: verdict.as_str().into(),
            about: "run 1".into(),
            resolved,
        };
        assert_eq!(decisions, [decision]);
        // Results that come after the decision change nothing.
        if sums[5] == 0 {
            assert!(!ledger.settle_part("batch", part("2", 60, 100)).await.expect("it is closed"));
        }
    }
    let ledger = with_unknown().await;
    let more = Verdict::Billed(Some(NanoUsd(1_301)));
    let error =
        ledger.resolve(UnknownFilter::default(), more, ("me", "all"), NOW).await.expect_err("too much");
    assert!(error.to_string().contains("more than those calls can have cost"), "{error}");
    check(&ledger, [1, 60, 0, 0, 6, 1_300]).await;
}
