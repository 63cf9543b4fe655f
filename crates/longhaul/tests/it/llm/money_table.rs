//! What the program says that a run cost, beside the simulator's own books: the table of docs/models.md. Whatever happens in
//! between, the bill is in the range that is reported, and within the limit where there is one.

use serde_json::Value;

use crate::workers::until;

use super::sim::{Desk, Sim, all_answered, nanos};

/// Of `sim-small` and `sim-embed`, in nano-dollars for a thousand tokens.
const SMALL: [u64; 2] = [200_000, 800_000];
const EMBED: [u64; 2] = [20_000, 0];
const LARGE: [u64; 2] = [3_000_000, 15_000_000];
/// Batches take about a third of a second.
const QUICK: &str = r#"{"batch":{"queue_s":60,"run_s":200,"finalize_s":60,"time_scale":1000}}"#;
const OUT: [&str; 2] = ["--out", "answers.jsonl"];

/// A simulator that writes down every call that it executed, and a place whose profile leads to it.
struct Books {
    sim: Sim,
    desk: Desk,
    /// Removed at the end.
    _log: tempfile::TempDir,
}

/// What a row of the table says.
struct Row {
    executed: u64,
    /// By the simulator's books, in nano-dollars.
    billed: u64,
    /// By ours.
    low: u64,
    high: u64,
}

impl Books {
    fn new(prompts: u64, options: &[&str]) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let log = folder.path().join("executed.jsonl");
        let sim = Sim::start(&[&["--log", log.to_str().expect("a path of text")], options].concat());
        let desk = Desk::at(&sim, prompts);
        Self { sim, desk, _log: folder }
    }

    /// Runs, with what every row has in common.
    fn run(&self, args: &[&str]) -> crate::place::Ran {
        self.desk.run(&[&["run", "prompts.txt", "--cache", "off"], args, &OUT].concat())
    }

    fn row(&self, name: &str) -> Row {
        let log = self.sim.log();
        let executed = self.sim.count("executed");
        assert_eq!(log.len() as u64, executed, "every call is in the log");
        let costs = self.desk.json(&["costs"]);
        let sum = |field: &str| {
            let lines = costs["items"].as_array().expect("a list");
            lines.iter().filter(|line| !line[field].is_null()).map(|line| nanos(&line[field])).sum::<u64>()
        };
        let row = Row {
            executed,
            billed: log.iter().map(bill).sum::<u64>() / 2_000,
            low: sum("cost_usd"),
            high: sum("cost_max_usd"),
        };
        let dollars = |nanos: u64| nanos as f64 / 1e9;
        eprintln!(
            "| {name} | {executed} | ${:.6} | ${:.6} to ${:.6} |",
            dollars(row.billed),
            dollars(row.low),
            dollars(row.high)
        );
        row
    }
}

impl Row {
    fn contains_the_bill(&self) {
        let Self { billed, low, high, .. } = self;
        assert!((low..=high).contains(&billed), "billed {billed}, reported {low} to {high}");
    }

    fn is_the_bill(&self) {
        assert_eq!((self.low, self.high), (self.billed, self.billed), "to the nano-dollar");
    }
}

/// What a call costs by the simulator's log, in half nano-dollars for a thousand tokens.
fn bill(call: &Value) -> u64 {
    let [input, output] = match call["model"].as_str() {
        Some("sim-embed") => EMBED,
        Some("sim-large") => LARGE,
        _ => SMALL,
    };
    let usage = |class: &str| call["usage"][class].as_u64().unwrap_or(0);
    let cost = usage("fresh_in") * input + (usage("out") + usage("reasoning")) * output;
    if call["kind"] == "batch" { cost } else { cost * 2 }
}

/// Kills the command each time that so many more requests were executed, then lets it end.
fn with_kills(books: &Books, args: &[&str], after: &[u64]) {
    let all = [&["run", "prompts.txt", "--cache", "off"], args, &OUT].concat();
    for executed in after {
        let mut run = books.desk.start(&all);
        until("requests to be executed", || {
            assert!(!run.has_ended(), "the run ended before it was killed");
            books.sim.count("executed") >= *executed
        });
        run.kill();
    }
    let ran = books.desk.run(&all);
    assert_eq!(ran.code, Some(0), "{ran:?}");
}

#[test]
fn a_prompt_that_names_its_model_has_that_models_price_and_limit() {
    for mode in ["--sync", "--batch"] {
        let books = Books::new(1, &[]);
        let line = |number: u64| {
            let model = if number.is_multiple_of(3) { r#","model":"sim-large""# } else { "" };
            format!("{{\"prompt\":\"Question {number}\"{model}}}\n")
        };
        books.desk.place.write("prompts.txt", &(0..30).map(line).collect::<String>());
        let args = ["--format", "jsonl", mode, "--max-tokens", "100"];
        let estimate =
            books.desk.json(&["estimate", "prompts.txt", "--format", "jsonl", "--max-tokens", "100"]);
        let ran = books.run(&args);
        assert_eq!(ran.code, Some(0), "{ran:?}");
        let row = books.row(&format!("ten of thirty prompts name a dearer model, {mode}"));
        row.is_the_bill();
        let most = nanos(&estimate["ceiling_usd"]);
        assert!(row.billed < most && most > 10 * 100 * 15_000, "{estimate}");

        // A model without a price does not pass under a limit.
        books.desk.place.write("prompts.txt", "{\"prompt\":\"a\",\"model\":\"sim-nope\"}\n");
        let ran = books.run(&["--format", "jsonl", mode, "--max-cost", "5", "--force"]);
        ran.fails(7, &["has no price"]);
    }
}

#[test]
fn one_by_one_with_kills_the_bill_is_in_the_range() {
    let books = Books::new(300, &["--latency", "40ms"]);
    with_kills(&books, &["--sync", "--concurrency", "16", "--max-tokens", "200"], &[60, 120, 180]);
    all_answered(&books.desk.answers("answers.jsonl"), 300);
    let row = books.row("one by one, killed three times");
    row.contains_the_bill();
    assert!(row.executed >= 300 && row.low < row.high, "what was cut off is not hidden");
    // The headline of the run says the same.
    let spent = &books.desk.only_run()["spent"];
    assert_eq!((nanos(&spent["cost_usd"]), nanos(&spent["cost_max_usd"])), (row.low, row.high));
    let id = books.desk.run_id();
    let shown = books.desk.ok(&["runs", "show", &id]).stdout;
    assert!(shown.lines().any(|line| line.starts_with("cost") && line.contains(" to $")), "{shown}");
}

#[test]
fn a_decision_about_unknown_calls_frees_the_limit() {
    let books = Books::new(60, &["--latency", "300ms"]);
    let limit = ["--sync", "--concurrency", "8", "--max-tokens", "1000", "--max-cost", "0.012"];
    let all = [&["run", "prompts.txt", "--cache", "off"], &limit[..], &OUT].concat();
    let mut run = books.desk.start(&all);
    until("calls to be under way", || books.sim.count("calls") >= 8);
    run.kill();
    let before = books.desk.json(&["costs"]);
    let unknown = before["items"][0]["unknown_calls"].as_u64().expect("a count");
    assert!(unknown > 0, "{before}");
    let listed = books.desk.json(&["costs", "unknown"]);
    assert_eq!(listed["items"].as_array().map(Vec::len), Some(unknown as usize), "{listed}");
    // What the provider's usage page says is what its books say.
    let billed = books.sim.log().iter().map(bill).sum::<u64>() / 2_000;
    let too_much = books.desk.run(&["costs", "resolve", "--bill", "99", "--yes"]);
    assert_eq!(too_much.code, Some(1), "{too_much:?}");
    let bill = format!("{:.9}", billed as f64 / 1e9);
    let resolved = books.desk.json(&["costs", "resolve", "--bill", &bill, "--yes"]);
    let rest = billed - nanos(&before["items"][0]["cost_usd"]);
    assert_eq!((&resolved["calls"], nanos(&resolved["cost_usd"])), (&unknown.into(), rest), "{resolved}");
    books.row("killed, then settled by the provider's own figure").is_the_bill();
    let decisions = books.desk.json(&["costs", "decisions"]);
    let decision = &decisions["items"][0];
    assert_eq!(
        (&decision["verdict"], &decision["calls"]),
        (&"billed".into(), &unknown.into()),
        "{decisions}"
    );
    assert!(decision["decided_by"].is_string() && decision["decided_at"].as_i64() > Some(0), "{decisions}");
    assert_eq!(
        books.desk.run(&["costs", "resolve", "--billed", "--yes"]).code,
        Some(4),
        "nothing is left to decide"
    );
    // The run goes on to its end with what was freed.
    let ran = books.desk.run(&all);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let row = books.row("the same, run to its end");
    row.is_the_bill();
    assert!(row.high <= 12_000_000, "{} is over the limit", row.high);
}

#[test]
fn a_batch_with_kills_costs_what_is_booked() {
    let books = Books::new(120, &["--options", QUICK]);
    let all = [&["run", "prompts.txt", "--cache", "off", "--batch"], &OUT[..]].concat();
    for created in [1, 1] {
        let mut run = books.desk.start(&all);
        until("the batch to be there", || books.sim.count("batches_created") >= created);
        run.kill();
    }
    books.desk.ok(&all);
    all_answered(&books.desk.answers("answers.jsonl"), 120);
    books.row("a batch, killed twice").is_the_bill();
}

#[test]
fn a_limit_holds_one_by_one_and_in_batches_that_are_split_to_fit() {
    let books = Books::new(100, &["--options", QUICK]);
    books
        .run(&["--sync", "--max-tokens", "200", "--max-cost", "0.0012"])
        .fails(7, &["held (budget)", "--max-tokens"]);
    let row = books.row("one by one under a limit of $0.0012");
    row.is_the_bill();
    assert!(row.high <= 1_200_000 && row.executed > 5, "{}", row.high);

    // Without max_tokens a request may cost up to $0.0033: six at a time fit, and all of them truly cost a tenth of that.
    let books = Books::new(30, &["--options", QUICK]);
    let ran = books.run(&["--batch", "--max-cost", "0.02"]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    all_answered(&books.desk.answers("answers.jsonl"), 30);
    let row = books.row("in batches under a limit of $0.02");
    row.is_the_bill();
    assert!(row.high <= 20_000_000, "{}", row.high);
    assert!((3..=10).contains(&books.sim.count("batches_created")), "{}", books.sim.stats());
    assert_eq!((row.executed, books.sim.count("paid_twice")), (30, 0));
}

#[test]
fn two_processes_share_a_limit() {
    let books = Books::new(200, &["--latency", "20ms"]);
    let limit = ["--sync", "--max-tokens", "200", "--max-cost", "0.004", "--concurrency", "16"];
    let all = [&["run", "prompts.txt", "--cache", "off"], &limit[..], &OUT].concat();
    let mut other = books.desk.start(&["work", "--drain"]);
    let ran = books.desk.run(&all);
    assert!(matches!(ran.code, Some(0 | 7)), "{ran:?}");
    other.kill();
    let row = books.row("two processes under a limit of $0.004");
    row.contains_the_bill();
    assert!(row.billed <= 4_000_000 && row.high <= 4_000_000, "billed {}, booked {}", row.billed, row.high);
}

#[test]
fn short_embeddings_cost_what_their_tokens_cost() {
    let books = Books::new(500, &[]);
    let ran = books.run(&["--embed", "--model", "sim-embed", "--dimensions", "8"]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let row = books.row("500 embeddings");
    row.is_the_bill();
    assert_eq!(row.executed, 500);
}

/// Nothing is known of the price of either, so neither costs nothing, and a limit is not pretended.
#[test]
fn what_has_no_price_is_not_free_and_not_let_pass_under_a_limit() {
    let books = Books::new(20, &[]);
    let ran = books.run(&["--model", "nobody-prices-this", "--progress", "lines"]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert!(ran.stderr.contains("cost_usd=unpriced") && !ran.stderr.contains("cost_usd=0"), "{ran:?}");
    let costs = books.desk.json(&["costs"]);
    assert_eq!(
        (&costs["items"][0]["cost_usd"], &costs["items"][0]["unpriced_calls"]),
        (&Value::Null, &20.into())
    );

    std::fs::remove_file(books.desk.place.path("answers.jsonl")).expect("it was written");
    let gateway = books.sim.base_url();
    let through = ["--base-url", gateway.as_str(), "--model", "gpt-5", "--sync"];
    let limited = [&through[..], &["--max-cost", "1"]].concat();
    let executed = books.sim.count("executed");
    books.run(&limited).fails(7, &["gpt-5 has no price", "--allow-unpriced"]);
    assert_eq!(books.sim.count("executed"), executed, "nothing was sent");
    let ran = books.run(&[&limited[..], &["--allow-unpriced"]].concat());
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert!(ran.stderr.contains("cost         unpriced"), "{ran:?}");
    eprintln!(
        "| a model without a price, a gateway on this machine | {} | – | unpriced |",
        books.sim.count("executed")
    );
}
