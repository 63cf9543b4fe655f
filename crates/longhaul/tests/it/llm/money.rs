//! Limits on spending stop a run before they are exceeded, and what has no price is never called free.

use super::sim::{Desk, Sim, all_answered};

const RUN: [&str; 8] = ["run", "prompts.txt", "--sync", "--cache", "off", "--max-tokens", "200", "--out"];
/// Of `sim-small`, in millionths of a dollar for a million tokens.
const INPUT_PRICE: u64 = 200_000;
const OUTPUT_PRICE: u64 = 800_000;

fn run(desk: &Desk, more: &[&str]) -> crate::place::Ran {
    desk.run(&[&RUN[..], &["answers.jsonl"], more].concat())
}

/// What was spent by our books.
fn booked(desk: &Desk) -> u64 {
    let costs = desk.json(&["costs"]);
    let lines = costs["items"].as_array().expect("a list");
    lines.iter().map(|line| line["cost_micros"].as_u64().expect("a price")).sum()
}

/// What was spent by the provider's books.
fn billed(sim: &Sim) -> u64 {
    let stats = sim.stats();
    let tokens = |name: &str| stats[name].as_u64().expect("a count");
    (tokens("tokens_in") * INPUT_PRICE + tokens("tokens_out") * OUTPUT_PRICE) / 1_000_000
}

#[test]
fn a_run_stops_before_its_limit_and_goes_on_when_more_is_allowed() {
    let sim = Sim::start(&[]);
    let desk = Desk::at(&sim, 100);
    // About a third of what all of them cost.
    let ran = run(&desk, &["--max-cost", "0.0012"]);
    ran.fails(7, &["stops before $0.0012", "held (budget)", "runs resume", "--max-cost USD"]);
    assert!(!desk.place.path("answers.jsonl").exists());
    let (ours, theirs) = (booked(&desk), billed(&sim));
    assert!(ours <= 1_200 && theirs <= 1_200, "booked {ours}, billed {theirs}");
    assert!(sim.count("executed") > 5, "it stops close to the limit");
    let id = desk.run_id();
    desk.ok(&["runs", "resume", &id, "--max-cost", "1"]);
    desk.ok(&["work", "--drain"]);
    desk.ok(&["runs", "results", &id, "--out", "answers.jsonl"]);
    all_answered(&desk.answers("answers.jsonl"), 100);
    assert_eq!((sim.count("executed"), sim.count("paid_twice")), (100, 0));
    // Our books round each call, by less than a millionth of a dollar.
    assert!(booked(&desk).abs_diff(billed(&sim)) <= 100, "{} and {}", booked(&desk), billed(&sim));
}

#[test]
fn budgets_of_a_day_and_of_tags_stop_a_run_too() {
    for (setting, value, named) in [
        ("LONGHAUL_BUDGET__DAY", "0.001", "budget.day"),
        ("LONGHAUL_BUDGET__TAGS", "team=0.001", "budget.tags"),
    ] {
        let sim = Sim::start(&[]);
        let mut desk = Desk::at(&sim, 100);
        desk.set(setting, value);
        let ran = run(&desk, &["--tag", "team"]);
        ran.fails(7, &["held (budget)", named]);
        assert!(!ran.stderr.contains("--max-cost"), "it would not help: {ran:?}");
        assert!(booked(&desk) <= 1_000 && billed(&sim) <= 1_000, "{setting}");
        desk.set(setting, &value.replace("0.001", "10"));
        let ran = run(&desk, &["--tag", "team"]);
        assert_eq!(ran.code, Some(0), "{setting}: {ran:?}");
        all_answered(&desk.answers("answers.jsonl"), 100);
    }
}

/// A batch is booked whole, so it is not sent at all.
#[test]
fn a_batch_beyond_the_limit_is_not_sent() {
    let sim = Sim::start(&[]);
    let desk = Desk::at(&sim, 100);
    let args = ["run", "prompts.txt", "--batch", "--max-tokens", "200", "--out", "answers.jsonl"];
    desk.run(&[&args[..], &["--max-cost", "0.0001"]].concat()).fails(7, &["held (budget)"]);
    assert_eq!((sim.count("batches_created"), sim.count("executed")), (0, 0));
    desk.ok(&[&args[..], &["--max-cost", "1"]].concat());
    all_answered(&desk.answers("answers.jsonl"), 100);
    assert_eq!(sim.count("batches_created"), 1);
}

#[test]
fn an_estimate_asks_nobody_and_stores_nothing() {
    let sim = Sim::start(&[]);
    let desk = Desk::at(&sim, 50);
    let estimate = desk.json(&["estimate", "prompts.txt"]);
    assert_eq!((&estimate["requests"], &estimate["simulated"]), (&50.into(), &true.into()), "{estimate}");
    assert!(estimate["cost_micros"].as_u64() < estimate["ceiling_micros"].as_u64(), "{estimate}");
    let ran = desk.ok(&["run", "prompts.txt", "--dry-run", "--max-cost", "2"]);
    assert!(ran.stdout.contains("50 requests") && ran.stdout.contains("stops before $2.00"), "{ran:?}");
    assert!(ran.stderr.contains("nothing was sent"), "{ran:?}");
    assert_eq!(desk.run(&["runs", "ls", "-o", "json"]).stdout.matches("run-").count(), 0);
    assert_eq!((sim.count("calls"), sim.count("batches_created")), (0, 0));
}

#[test]
fn what_has_no_price_is_called_unpriced_and_has_no_limit() {
    let sim = Sim::start(&[]);
    let desk = Desk::at(&sim, 5);
    let model = ["--model", "nobody-prices-this"];
    assert!(desk.ok(&[&["estimate", "prompts.txt"], &model[..]].concat()).stdout.contains("unpriced"));
    let ran = run(&desk, &model);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert!(ran.stderr.contains("unpriced"), "{ran:?}");
    assert!(desk.answers("answers.jsonl")[0]["cost_usd"].is_null());
    let costs = desk.json(&["costs"]);
    assert!(costs["items"][0]["cost_micros"].is_null(), "{costs}");
    assert_eq!(costs["items"][0]["unpriced_calls"], 5, "{costs}");
    assert!(desk.ok(&["costs"]).stdout.contains("unpriced"));
    // A limit on what cannot be counted would be no limit.
    let executed = sim.count("executed");
    let ran = run(&desk, &[&model[..], &["--max-cost", "1", "--limit", "4", "--force"]].concat());
    ran.fails(7, &["has no price", "llm.prices"]);
    assert!(!ran.stderr.contains("allow unpriced"), "there is no such option: {ran:?}");
    assert_eq!(sim.count("executed"), executed);
}
