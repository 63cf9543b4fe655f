//! Money over several processes, some of which die.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Stdio};

use longhaul_llm::ledger::{LedgerError, PartSpent, Reservation, Reserved, Spent};
use longhaul_llm::{Ledger, LlmFile, NanoUsd, Scope, Usage};
use longhaul_sqlite::child;

const NOW: i64 = 1_763_190_000_000;

fn open(folder: &Path) -> Ledger {
    Ledger::new(LlmFile::open(&folder.join("llm.db")).expect("the file opens"))
}

fn call(name: &str, job: &str, fence: u64, ceiling: u64) -> Reservation {
    Reservation {
        call: name.into(),
        job: job.into(),
        fence: Some(fence),
        scopes: vec![Scope::run("1"), Scope::all()],
        ceiling: Some(NanoUsd(ceiling)),
        requests: 1,
        profile: "p".into(),
        model: "m".into(),
    }
}

fn spent(cost: u64) -> Spent {
    Spent { usage: Usage { out: 1, ..Usage::default() }, cost: Some(NanoUsd(cost)), answers: 1 }
}

fn part(number: u64) -> PartSpent {
    PartSpent { part: number.to_string(), spent: spent(7), ceiling_share: Some(NanoUsd(10)) }
}

/// Waits until the child has said a word, then kills it as nothing can be caught.
fn kill_after(mut child: Child, word: &str) {
    let lines = BufReader::new(child.stdout.take().expect("it is piped")).lines();
    let said = lines.map_while(Result::ok).any(|line| line.contains(word));
    assert!(said, "the child did not come so far");
    child.kill().expect("it can be killed");
    child.wait().expect("it has ended");
}

#[tokio::test]
async fn what_a_killed_process_reserved_stays_booked_and_becomes_unknown() {
    const NAME: &str = "ledger::what_a_killed_process_reserved_stays_booked_and_becomes_unknown";
    if let Some((_, folder)) = child::role() {
        let ledger = open(&folder);
        ledger.reserve(call("done", "j", 1, 100), NOW).await.expect("it fits");
        ledger.settle("done", spent(60)).await.expect("it is open");
        ledger.reserve(call("lost", "j", 1, 100), NOW).await.expect("it fits");
        println!("reserved");
        // The call is under way, and the process is killed in the middle of it.
        std::future::pending::<()>().await;
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    kill_after(
        child::command(NAME, "child", folder.path()).stdout(Stdio::piped()).spawn().expect("it starts"),
        "reserved",
    );
    let ledger = open(folder.path());
    let totals = ledger.totals(&Scope::run("1")).await.expect("it answers");
    assert_eq!((totals.calls, totals.cost.0, totals.open_calls, totals.open_ceiling.0), (1, 60, 1, 100));
    assert_eq!(totals.unknown_calls, 0);
    ledger.reserve(call("again", "j", 2, 100), NOW).await.expect("it fits");
    ledger.settle("again", spent(60)).await.expect("it is open");
    let totals = ledger.totals(&Scope::run("1")).await.expect("it answers");
    assert_eq!((totals.calls, totals.cost.0, totals.open_calls), (2, 120, 0));
    assert_eq!((totals.unknown_calls, totals.unknown_ceiling.0), (1, 100), "it may have been billed");
}

#[tokio::test]
async fn calls_of_a_dead_process_become_unknown_and_those_of_the_living_stay_open() {
    const NAME: &str = "ledger::calls_of_a_dead_process_become_unknown_and_those_of_the_living_stay_open";
    if let Some((role, folder)) = child::role() {
        let ledger = open(&folder);
        ledger.reserve(call(&role, &role, 0, 100), NOW).await.expect("it fits");
        let batch = Reservation { fence: None, ..call("batch", "b", 0, 10) };
        ledger.reserve(batch, NOW).await.expect("it fits");
        println!("reserved");
        std::future::pending::<()>().await;
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let begin = |role: &str| {
        child::command(NAME, role, folder.path()).stdout(Stdio::piped()).spawn().expect("it starts")
    };
    let mut living = begin("living");
    let mut lines = BufReader::new(living.stdout.take().expect("it is piped")).lines().map_while(Result::ok);
    assert!(lines.any(|line| line.contains("reserved")), "the child did not come so far");
    kill_after(begin("dead"), "reserved");
    let ledger = open(folder.path());
    ledger.reserve(call("own", "own", 0, 1), NOW).await.expect("it fits");
    assert_eq!(ledger.abandon_dead(NOW).await.expect("it answers"), 1);
    assert_eq!(ledger.abandon_dead(NOW).await.expect("it answers"), 0, "once");
    let totals = ledger.totals(&Scope::run("1")).await.expect("it answers");
    assert_eq!((totals.open_calls, totals.open_ceiling.0), (3, 111), "the living, the batch and our own");
    assert_eq!((totals.unknown_calls, totals.unknown_ceiling.0), (1, 100), "it may have been billed");
    living.kill().expect("it can be killed");
    living.wait().expect("it has ended");
    assert_eq!(ledger.abandon_dead(NOW).await.expect("it answers"), 1);
    // Somebody knows after all.
    ledger.settle("dead", spent(60)).await.expect("it is unknown");
    let totals = ledger.totals(&Scope::run("1")).await.expect("it answers");
    assert_eq!((totals.cost.0, totals.unknown_calls, totals.unknown_ceiling.0), (60, 1, 100));
}

#[tokio::test]
async fn a_batch_whose_worker_is_killed_while_storing_is_booked_once() {
    const NAME: &str = "ledger::a_batch_whose_worker_is_killed_while_storing_is_booked_once";
    const PARTS: u64 = 500;
    let batch = || Reservation { fence: None, requests: PARTS, ..call("batch", "j", 0, PARTS * 10) };
    if let Some((role, folder)) = child::role() {
        let ledger = open(&folder);
        ledger.reserve(batch(), NOW).await.expect("it fits");
        // Each child gets a little further before it dies.
        let reach: u64 = role.parse().expect("a number");
        for number in 0..PARTS {
            ledger.settle_part("batch", part(number)).await.expect("it is open");
            if number == reach {
                println!("reached");
            }
        }
        std::future::pending::<()>().await;
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    for reach in [0, 50, 120] {
        let mut command = child::command(NAME, &reach.to_string(), folder.path());
        kill_after(command.stdout(Stdio::piped()).spawn().expect("it starts"), "reached");
    }
    let ledger = open(folder.path());
    assert_eq!(ledger.reserve(batch(), NOW).await.expect("it is booked"), Reserved::Again);
    let before = ledger.totals(&Scope::all()).await.expect("it answers");
    assert!(before.calls > 120 && before.cost.0 == before.calls * 7, "{before:?}");
    assert_eq!(before.open_ceiling.0, (PARTS - before.calls) * 10);
    let all = (0..PARTS).map(part).collect();
    assert_eq!(ledger.settle_parts("batch", all).await.expect("it is open"), PARTS - before.calls);
    ledger.close("batch", NOW).await.expect("it is open");
    let totals = ledger.totals(&Scope::all()).await.expect("it answers");
    assert_eq!((totals.calls, totals.cost.0), (PARTS, PARTS * 7));
    assert_eq!((totals.open_calls, totals.open_ceiling.0, totals.unknown_calls), (0, 0, 0));
}

/// Spends until nothing fits any more; how much was spent, and how often.
async fn spend_all(ledger: Ledger, name: String, seed: u64) -> (u64, u64) {
    let mut random = fastrand::Rng::with_seed(seed);
    let (mut sum, mut calls, mut refused) = (0, 0, 0);
    for number in 0.. {
        let (call_name, ceiling) = (format!("{name}-{number}"), random.u64(1..50));
        match ledger.reserve(call(&call_name, &name, 1, ceiling), NOW).await {
            Ok(_) => {
                let cost = random.u64(0..=ceiling);
                ledger.settle(&call_name, spent(cost)).await.expect("it is open");
                sum += cost;
                calls += 1;
            }
            Err(LedgerError::OverBudget(refusal)) => {
                let booked = refusal.spent.0 + refusal.open.0 + refusal.unknown.0;
                assert!(booked <= refusal.cap.0 && booked + refusal.ceiling.0 > refusal.cap.0, "{refusal}");
                refused += 1;
                if refused == 20 {
                    break;
                }
            }
            Err(other) => panic!("{other}"),
        }
    }
    (sum, calls)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cap_holds_for_many_callers_on_two_handles() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let handles = [open(folder.path()), open(folder.path())];
    let cap = NanoUsd(30_000);
    handles[0].set_cap(&Scope::run("1"), Some(cap)).await.expect("it is set");
    let tasks: Vec<_> = (0..64)
        .map(|number| spend_all(handles[number % 2].clone(), format!("c{number}"), number as u64))
        .map(tokio::spawn)
        .collect();
    let (mut sum, mut calls) = (0, 0);
    for task in tasks {
        let (spent, made) = task.await.expect("no panic");
        sum += spent;
        calls += made;
    }
    for handle in &handles {
        let totals = handle.totals(&Scope::run("1")).await.expect("it answers");
        assert_eq!(
            (totals.cost.0, totals.calls, totals.open_calls, totals.open_ceiling.0),
            (sum, calls, 0, 0)
        );
    }
    assert!(sum <= cap.0 && sum > cap.0 - 50, "{sum} of {cap}: all of it can be used, and no more");
}

#[tokio::test]
async fn a_cap_holds_over_processes() {
    const NAME: &str = "ledger::a_cap_holds_over_processes";
    if let Some((role, folder)) = child::role() {
        let seed: u64 = role.parse().expect("a number");
        let ledger = open(&folder);
        let tasks =
            (0..8).map(|number| spend_all(ledger.clone(), format!("p{seed}-{number}"), seed * 100 + number));
        let spent: u64 = futures_util::future::join_all(tasks).await.into_iter().map(|(sum, _)| sum).sum();
        println!("\nspent {spent} all told");
        return;
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let cap = NanoUsd(10_000);
    open(folder.path()).set_cap(&Scope::all(), Some(cap)).await.expect("it is set");
    let children: Vec<Child> = (1..=3)
        .map(|seed| {
            child::command(NAME, &seed.to_string(), folder.path())
                .stdout(Stdio::piped())
                .spawn()
                .expect("it starts")
        })
        .collect();
    let mut sum = 0;
    for child in children {
        let output = child.wait_with_output().expect("it ends");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let told =
            text.lines().find_map(|line| line.strip_prefix("spent ")?.split(' ').next()?.parse::<u64>().ok());
        sum += told.unwrap_or_else(|| panic!("a child failed: {text}"));
    }
    let totals = open(folder.path()).totals(&Scope::all()).await.expect("it answers");
    assert_eq!((totals.cost.0, totals.open_calls), (sum, 0));
    assert!(sum <= cap.0 && sum > cap.0 - 50, "{sum} of {cap}");
}
