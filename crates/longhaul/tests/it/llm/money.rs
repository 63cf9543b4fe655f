//! Limits on spending stop a run before they are exceeded, and what has no price is never called free.

use super::sim::{Desk, Sim, all_answered, nanos};

const RUN: [&str; 8] = ["run", "prompts.txt", "--sync", "--cache", "off", "--max-tokens", "200", "--out"];
/// Of `sim-small`, in nano-dollars a token.
const INPUT_PRICE: u64 = 200;
const OUTPUT_PRICE: u64 = 800;

fn run(desk: &Desk, more: &[&str]) -> crate::place::Ran {
    desk.run(&[&RUN[..], &["answers.jsonl"], more].concat())
}

/// What was spent by our books.
fn booked(desk: &Desk) -> u64 {
    let costs = desk.json(&["costs"]);
    let lines = costs["items"].as_array().expect("a list");
    lines.iter().map(|line| nanos(&line["cost_usd"])).sum()
}

/// What was spent by the provider's books.
fn billed(sim: &Sim) -> u64 {
    let stats = sim.stats();
    let tokens = |name: &str| stats[name].as_u64().expect("a count");
    tokens("tokens_in") * INPUT_PRICE + tokens("tokens_out") * OUTPUT_PRICE
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
    assert!(ours <= 1_200_000 && theirs <= 1_200_000, "booked {ours}, billed {theirs}");
    assert!(sim.count("executed") > 5, "it stops close to the limit");
    let id = desk.run_id();
    desk.ok(&["runs", "resume", &id, "--max-cost", "1"]);
    desk.ok(&["work", "--drain"]);
    desk.ok(&["runs", "results", &id, "--out", "answers.jsonl"]);
    all_answered(&desk.answers("answers.jsonl"), 100);
    assert_eq!((sim.count("executed"), sim.count("paid_twice")), (100, 0));
    assert_eq!(booked(&desk), billed(&sim), "exactly");
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
        assert!(booked(&desk) <= 1_000_000 && billed(&sim) <= 1_000_000, "{setting}");
        desk.set(setting, &value.replace("0.001", "10"));
        let ran = run(&desk, &["--tag", "team"]);
        assert_eq!(ran.code, Some(0), "{setting}: {ran:?}");
        all_answered(&desk.answers("answers.jsonl"), 100);
    }
}

/// Under a budget of the day, which no run has of its own, the hint can be followed as well.
#[test]
fn what_has_no_price_passes_under_a_budget_of_the_day_once_its_run_is_allowed_to() {
    let sim = Sim::start(&[]);
    let mut desk = Desk::at(&sim, 5);
    desk.set("LONGHAUL_BUDGET__DAY", "1");
    let model = ["--model", "nobody-prices-this"];
    let ran = run(&desk, &model);
    ran.fails(7, &["day:", "has no price", "runs resume run-", "--allow-unpriced"]);
    assert_eq!(sim.count("executed"), 0);
    let id = desk.json(&["runs", "ls"])["items"][0]["id"].as_str().expect("an id").to_owned();
    desk.ok(&["runs", "resume", &id, "--allow-unpriced"]);
    desk.ok(&["work", "--drain"]);
    assert_eq!(sim.count("executed"), 5);
    // The same command does it too, without a limit of its own.
    let other = [&model[..], &["--limit", "4", "--force"]].concat();
    run(&desk, &other).fails(7, &["--allow-unpriced"]);
    let ran = run(&desk, &[&other[..], &["--allow-unpriced"]].concat());
    assert_eq!(ran.code, Some(0), "{ran:?}");
}

/// Of which not even one request fits at the most it can cost.
#[test]
fn a_batch_beyond_the_limit_is_not_sent() {
    let sim = Sim::start(&[]);
    let desk = Desk::at(&sim, 100);
    let args = ["run", "prompts.txt", "--batch", "--max-tokens", "200", "--out", "answers.jsonl"];
    desk.run(&[&args[..], &["--max-cost", "0.00001"]].concat()).fails(7, &["held (budget)", "--max-tokens"]);
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
    assert!(estimate["cost_usd"].as_f64() < estimate["cost_max_usd"].as_f64(), "{estimate}");
    assert!(estimate["cost_max_usd"].as_f64() < estimate["ceiling_usd"].as_f64(), "{estimate}");
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
    assert!(costs["items"][0]["cost_usd"].is_null(), "{costs}");
    assert_eq!(costs["items"][0]["unpriced_calls"], 5, "{costs}");
    assert!(desk.ok(&["costs"]).stdout.contains("unpriced"));
    // A limit on what cannot be counted would be no limit.
    let executed = sim.count("executed");
    let ran = run(&desk, &[&model[..], &["--max-cost", "1", "--limit", "4", "--force"]].concat());
    ran.fails(7, &["has no price", "llm.prices"]);
    assert!(!ran.stderr.contains("allow unpriced"), "there is no such option: {ran:?}");
    assert_eq!(sim.count("executed"), executed);
}

#[test]
fn an_estimate_is_a_range_before_a_sample_and_within_a_tenth_after_it() {
    let quick = r#"{"batch":{"queue_s":60,"run_s":200,"finalize_s":60,"time_scale":1000}}"#;
    let shapes: [(&[&str], &[&str]); 4] = [
        (&[], &[]),
        (&["--schema", "schema.json"], &[]),
        (&["--system", "Be brief.", "--max-tokens", "60"], &[]),
        (&[], &["--batch"]),
    ];
    for (shape, mode) in shapes {
        let sim = Sim::with(quick);
        let desk = Desk::at(&sim, 300);
        let estimate = || {
            let told = desk.json(&[&["estimate", "prompts.txt"], shape, mode].concat());
            let field = if mode.is_empty() {
                ["cost_usd", "cost_max_usd"]
            } else {
                ["batch_cost_usd", "batch_cost_max_usd"]
            };
            (told["basis"].as_str().expect("a basis").to_owned(), field.map(|field| nanos(&told[field])))
        };
        let (basis, before) = estimate();
        assert!(basis != "sample" && before[0] < before[1], "{basis} {before:?}");
        let run = |more: &[&str]| {
            let args = ["run", "prompts.txt", "--cache", "off"];
            desk.ok(&[&args[..], shape, mode, more].concat())
        };
        let ran = run(&["--sample", "40", "--out", "sample.jsonl"]);
        assert!(ran.stderr.contains("all 300 prompts cost about $"), "{ran:?}");
        assert_eq!((sim.count("executed"), desk.answers("sample.jsonl").len()), (40, 40));
        let (basis, after) = estimate();
        assert_eq!((basis.as_str(), after[0]), ("sample", after[1]));
        let sampled = booked(&desk);
        let ran = run(&["--out", "answers.jsonl"]);
        assert!(ran.stderr.contains("cost about $"), "{ran:?}");
        let spent = booked(&desk) - sampled;
        eprintln!("{shape:?} {mode:?}: {before:?} before, {} after, {spent} spent", after[0]);
        assert!(
            after[0].abs_diff(spent) * 10 <= spent,
            "{shape:?} {mode:?}: {} instead of {spent}",
            after[0]
        );
        assert!(
            (before[0]..=before[1]).contains(&spent),
            "{shape:?} {mode:?}: {before:?} instead of {spent}"
        );
    }
}

#[test]
fn an_estimate_needs_no_key() {
    let place = crate::place::Place::new();
    place.write("prompts.txt", "one\ntwo\n");
    let ran = place.run(&["estimate", "prompts.txt", "--model", "gpt-5-mini"]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert!(ran.stdout.contains("one by one   $") && ran.stdout.contains("in batches   $"), "{ran:?}");
    assert!(ran.stderr.contains("--sample"), "{ran:?}");
    assert_eq!(place.run(&["estimate", "prompts.txt", "--model", "nobody-prices-this"]).code, Some(5));
    assert!(!place.path(".longhaul").exists(), "nothing is made");
}

#[test]
fn made_up_answers_are_told_whatever_their_model_is_called() {
    let place = crate::place::Place::new();
    place.write("prompts.txt", "one\ntwo\n");
    let ran =
        place.run(&["run", "prompts.txt", "--profile", "sim", "--model", "gpt-5", "--out", "answers.jsonl"]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert!(ran.stderr.contains("gpt-5 (simulated)") && ran.stderr.contains("made up"), "{ran:?}");
    let costs = place.run(&["costs"]);
    assert!(costs.stdout.contains("(simulated)"), "{costs:?}");
    assert!(place.run(&["runs", "ls"]).stdout.contains("(simulated)"));
}
