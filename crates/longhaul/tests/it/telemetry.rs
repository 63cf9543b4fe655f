//! Traces at a collector, and their ids in the log.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::llm::sim::Sim;
use crate::place::{Place, Ran};

const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const CALLER: &str = "b7ad6b7169203331";
/// Stands in every prompt, and must stand nowhere else.
const SECRET: &str = "xylophone";

/// A collector that keeps what is posted. One that is silent reads and never answers.
struct Collector {
    url: String,
    bodies: Receiver<(String, String)>,
}

impl Collector {
    fn start(silent: bool) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let url = format!("http://{}", listener.local_addr().expect("an address"));
        let (sender, bodies) = channel();
        std::thread::spawn(move || {
            let mut held = Vec::new();
            for stream in listener.incoming().flatten() {
                let stream = serve(stream, &sender, silent);
                held.extend(stream.filter(|_| silent));
            }
        });
        Self { url, bodies }
    }

    /// All spans that were posted so far; the program has ended.
    fn spans(&self) -> Vec<Value> {
        let mut spans = Vec::new();
        for (path, body) in self.bodies.try_iter() {
            assert_eq!(path, "POST /v1/traces HTTP/1.1");
            assert!(!body.contains(SECRET), "a prompt was exported: {body}");
            let body: Value = serde_json::from_str(&body).expect("JSON");
            let resource = &body["resourceSpans"][0];
            assert_eq!(resource["resource"]["attributes"][0]["value"]["stringValue"], "tests");
            spans.extend(resource["scopeSpans"][0]["spans"].as_array().expect("spans").clone());
        }
        spans
    }
}

fn serve(stream: TcpStream, sender: &Sender<(String, String)>, silent: bool) -> Option<TcpStream> {
    let mut reader = BufReader::new(stream);
    let (mut first, mut length) = (String::new(), 0);
    reader.read_line(&mut first).ok()?;
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        match line.trim().to_ascii_lowercase().split_once(": ") {
            Some(("content-length", value)) => length = value.parse().ok()?,
            Some(_) => {}
            None => break,
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    let mut stream = reader.into_inner();
    if !silent {
        sender.send((first.trim().to_owned(), String::from_utf8(body).ok()?)).ok()?;
        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}").ok()?;
    }
    Some(stream)
}

fn run(place: &Place, url: &str, args: &[&str], traceparent: Option<&str>) -> Ran {
    let mut command = place.command(args);
    command.env("LONGHAUL_TELEMETRY__OTLP_URL", url).env("LONGHAUL_TELEMETRY__SERVICE_NAME", "tests");
    command.env_remove("TRACEPARENT");
    if let Some(traceparent) = traceparent {
        command.env("TRACEPARENT", traceparent);
    }
    Ran::from(command.output().expect("running longhaul"))
}

fn prompts(place: &Place) {
    let lines: String = (1..=5).map(|number| format!("Say {SECRET} {number} times\n")).collect();
    place.write("prompts.txt", &lines);
}

const RUN: [&str; 6] = ["run", "prompts.txt", "--profile", "sim", "--out", "answers.jsonl"];

fn attribute<'a>(span: &'a Value, key: &str) -> &'a Value {
    let attributes = span["attributes"].as_array().expect("attributes");
    attributes.iter().find(|attribute| attribute["key"] == key).map_or(&Value::Null, |found| &found["value"])
}

fn named<'a>(spans: &'a [Value], start: &str) -> Vec<&'a Value> {
    spans.iter().filter(|span| span["name"].as_str().is_some_and(|name| name.starts_with(start))).collect()
}

#[test]
fn a_run_is_one_trace_from_the_caller_to_the_calls() {
    let (place, collector) = (Place::new(), Collector::start(false));
    prompts(&place);
    let ran = run(&place, &collector.url, &RUN, Some(&format!("00-{TRACE}-{CALLER}-01")));
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert!(!ran.stderr.contains("dropped"), "{ran:?}");
    let spans = collector.spans();
    assert!(spans.iter().all(|span| span["traceId"] == TRACE), "{spans:#?}");
    let [command] = named(&spans, "longhaul run")[..] else { panic!("{spans:#?}") };
    assert_eq!((&command["kind"], &command["parentSpanId"]), (&1.into(), &CALLER.into()));
    let runs = named(&spans, "process run-");
    assert_eq!(runs.len(), 6, "five requests and the run itself");
    for job in &runs {
        assert_eq!((&job["kind"], &job["parentSpanId"]), (&5.into(), &command["spanId"]));
        assert_eq!(attribute(job, "messaging.system")["stringValue"], "longhaul");
        assert_eq!(attribute(job, "longhaul.job.state")["stringValue"], "succeeded");
        assert!(attribute(job, "messaging.message.id")["stringValue"].is_string());
    }
    let calls = named(&spans, "chat sim-small");
    assert_eq!(calls.len(), 5);
    for call in calls {
        assert_eq!((&call["kind"], &call["status"]), (&3.into(), &Value::Null));
        assert!(runs.iter().any(|job| job["spanId"] == call["parentSpanId"]), "{call}");
        assert_eq!(attribute(call, "gen_ai.request.model")["stringValue"], "sim-small");
        for tokens in ["gen_ai.usage.input_tokens", "gen_ai.usage.output_tokens"] {
            let count = attribute(call, tokens)["intValue"].as_str().and_then(|count| count.parse().ok());
            assert!(count.is_some_and(|count: u64| count > 0), "{call}");
        }
        let reasons = &attribute(call, "gen_ai.response.finish_reasons")["arrayValue"]["values"];
        assert!(reasons[0]["stringValue"].is_string(), "{call}");
        let nanos = |key: &str| call[key].as_str().and_then(|nanos| nanos.parse::<u64>().ok());
        assert!(nanos("startTimeUnixNano") < nanos("endTimeUnixNano"), "{call}");
    }
}

/// Over HTTP: what the provider was sent belongs to the spans that the collector was sent.
#[test]
fn calls_and_batches_tell_the_provider_their_place_in_the_trace() {
    let collector = Collector::start(false);
    let sim = Sim::with(r#"{"batch":{"queue_s":60,"run_s":200,"finalize_s":60,"time_scale":1000}}"#);
    let cases: [(&str, &[&str], &str); 4] = [
        ("sync", &["--model", "sim-small"], "chat sim-small"),
        ("sync", &["--model", "sim-embed", "--embed"], "embeddings sim-embed"),
        ("batch", &["--model", "sim-small"], "create_batch sim-small"),
        ("batch", &["--model", "sim-embed", "--embed"], "create_batch sim-embed"),
    ];
    let mut logged = 0;
    for (mode, args, name) in cases {
        let place = Place::new();
        prompts(&place);
        let mode = format!("--{mode}");
        let args =
            [&["run", "prompts.txt", "--cache", "off", "--out", "answers.jsonl", &mode], args].concat();
        let mut command = place.command(&args);
        command.env("LONGHAUL_TELEMETRY__OTLP_URL", &collector.url);
        command.env("LONGHAUL_TELEMETRY__SERVICE_NAME", "tests").env("LONGHAUL_LLM__PROFILE", "p");
        command.env("LONGHAUL_PROFILES__P__PROVIDER", "openai").env("LONGHAUL_PROFILES__P__BATCHES", "true");
        command
            .env("LONGHAUL_PROFILES__P__BASE_URL", sim.base_url())
            .env("LONGHAUL_LLM__BATCH_POLL", "100ms");
        command.env("TRACEPARENT", format!("00-{TRACE}-{CALLER}-01"));
        let ran = Ran::from(command.output().expect("running longhaul"));
        assert_eq!(ran.code, Some(0), "{ran:?}");
        let spans = collector.spans();
        let calls = named(&spans, name);
        assert_eq!(calls.len(), if mode == "--sync" { 5 } else { 1 }, "{spans:#?}");
        let log = sim.log();
        assert_eq!(log[logged..].len(), 5, "{log:?}");
        for entry in &log[logged..] {
            let parent = entry["traceparent"].as_str().expect("a header").to_owned();
            let of =
                |span: &&&Value| parent == format!("00-{TRACE}-{}-01", span["spanId"].as_str().unwrap_or(""));
            assert!(calls.iter().any(|span| of(&span)), "{parent} is none of {calls:#?}");
        }
        logged = log.len();
        if mode == "--batch" {
            let id = &attribute(calls[0], "longhaul.batch.id")["stringValue"];
            assert_eq!(attribute(calls[0], "longhaul.batch.requests")["intValue"], "5", "{calls:#?}");
            for verb in ["upload_batch", "poll_batch", "batch_results"] {
                assert!(!named(&spans, verb).is_empty(), "no {verb}: {spans:#?}");
            }
            let results = named(&spans, "batch_results");
            assert_eq!(&attribute(results[0], "longhaul.batch.id")["stringValue"], id);
            assert!(
                attribute(results[0], "longhaul.cost.usd")["doubleValue"].as_f64() > Some(0.0),
                "{results:#?}"
            );
            assert!(
                attribute(results[0], "gen_ai.usage.input_tokens")["intValue"].is_string(),
                "{results:#?}"
            );
        } else {
            let operation = name.split(' ').next().expect("a word");
            assert_eq!(attribute(calls[0], "gen_ai.operation.name")["stringValue"], operation);
        }
    }
}

#[test]
fn a_job_that_fails_says_so_and_one_that_is_not_sampled_is_not_exported() {
    let (place, collector) = (Place::new(), Collector::start(false));
    let secret = format!(r#"{{"error":"{SECRET}"}}"#);
    let args = ["enqueue", "fail", &secret, "--max-attempts", "1"];
    assert_eq!(run(&place, "", &args, Some(&format!("00-{TRACE}-{CALLER}-01"))).code, Some(0));
    assert_eq!(run(&place, "", &args, Some(&format!("00-{TRACE}-{CALLER}-00"))).code, Some(0));
    assert_eq!(run(&place, "", &args, Some("no trace at all")).code, Some(0));
    run(&place, &collector.url, &["work", "--drain"], None).fails(3, &["3 failed"]);
    let spans = collector.spans();
    assert_eq!(spans.len(), 2, "{spans:#?}");
    for span in &spans {
        assert_eq!((&span["name"], &span["status"]["code"]), (&"process default".into(), &2.into()));
        assert_eq!(attribute(span, "error.type")["stringValue"], "failure");
    }
    let [traced] = spans.iter().filter(|span| span["traceId"] == TRACE).collect::<Vec<_>>()[..] else {
        panic!("{spans:#?}")
    };
    assert_eq!(traced["parentSpanId"], CALLER);
}

#[test]
fn a_collector_that_is_away_or_silent_costs_one_warning() {
    let away = TcpListener::bind("127.0.0.1:0").expect("a port");
    let away_url = format!("http://{}", away.local_addr().expect("an address"));
    drop(away);
    let silent = Collector::start(true);
    for url in [&away_url, &silent.url] {
        let place = Place::new();
        prompts(&place);
        let started = Instant::now();
        let ran = run(&place, url, &RUN, None);
        assert_eq!(ran.code, Some(0), "{ran:?}");
        assert!(started.elapsed() < Duration::from_secs(20), "{ran:?}");
        assert!(lines(&ran).is_empty(), "people are warned in words: {ran:?}");
        let warnings: Vec<&str> = ran.stderr.lines().filter(|line| line.starts_with("warning: ")).collect();
        let [warning] = &warnings[..] else { panic!("{ran:?}") };
        assert!(warning.contains("dropped=12"), "{warning}");
        assert_eq!(crate::place::read(&place.path("answers.jsonl")).lines().count(), 5);
    }
}

/// The lines of the log among what a program said.
fn lines(ran: &Ran) -> Vec<Value> {
    let lines = ran.stderr.lines().filter(|line| line.starts_with('{'));
    lines.map(|line| serde_json::from_str(line).expect("a line of JSON")).collect()
}

#[test]
fn every_line_of_the_log_has_ids_and_none_has_a_prompt() {
    let place = Place::new();
    prompts(&place);
    let ran = run(&place, "", &[&RUN[..], &["-vv"]].concat(), Some(&format!("00-{TRACE}-{CALLER}-01")));
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert!(!ran.stderr.contains(SECRET), "{ran:?}");
    let lines = lines(&ran);
    let ours: Vec<&Value> = lines
        .iter()
        .filter(|line| line["target"].as_str().is_some_and(|t| t.starts_with("longhaul")))
        .collect();
    assert!(ours.len() > 20, "{ran:?}");
    for line in &ours {
        assert_eq!(line["trace_id"], TRACE, "{line}");
        assert_eq!(line["span_id"].as_str().map(str::len), Some(16), "{line}");
        assert!(line["slice"].is_string(), "{line}");
    }
    let ends: Vec<&&Value> = ours.iter().filter(|line| line["fields"]["message"] == "EXIT run").collect();
    assert_eq!(ends.len(), 6);
    for end in &ends {
        assert_eq!(end["spans"][0]["job_id"], end["fields"]["job_id"], "{end}");
        assert_eq!(ends.iter().filter(|other| other["span_id"] == end["span_id"]).count(), 1, "{end}");
    }
}

#[test]
fn a_wrong_address_is_named_with_its_source() {
    let place = Place::new();
    let words = ["telemetry.otlp_url", "LONGHAUL_TELEMETRY__OTLP_URL", "http://localhost:4318"];
    run(&place, "localhost:4317", &["jobs", "ls"], None).fails(5, &words);
    run(&place, "http://me:secret@host", &["jobs", "ls"], None).fails(5, &["without user"]);
    place.write("longhaul.toml", "[telemetry]\nservice_name = \"\"\n");
    place.run(&["jobs", "ls"]).fails(5, &["telemetry.service_name", "longhaul.toml"]);
}
