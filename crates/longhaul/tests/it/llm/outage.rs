//! Providers that go away in the middle of a run: it is held, says so in one line, and goes on by itself. One that was never
//! there is an error at once.

use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use serde_json::json;
use tokio::io::AsyncWriteExt as _;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio_rustls::TlsAcceptor;

use crate::place::{Place, Ran};
use crate::workers::until;

use super::sim::{Desk, Sim, all_answered};

const RUN: [&str; 7] = ["run", "prompts.txt", "--sync", "--concurrency", "16", "--out", "answers.jsonl"];
const PROMPTS: u64 = 2_000;
/// So long are providers away. The first call that finds out that it is over goes after five seconds.
const AWAY: Duration = Duration::from_secs(3);
const SCORE: [&str; 8] =
    ["score", "texts.csv", "--text-column", "text", "--rubric", "rubric.toml", "--out", "scores.csv"];
const RUBRIC: &str = "[[category]]\nname = \"clear\"\ndefinition = \"how clear it is\"\n";
/// The most that a call with 200 tokens of output can cost.
const CEILING_USD: f64 = 0.0002;
const LATENCY: [&str; 2] = ["--latency", "10ms"];

/// What every outage comes to, whatever its kind.
fn survived(desk: &Desk, ran: &Ran, kind: &str) {
    assert_eq!(ran.code, Some(0), "{kind}: {ran:?}");
    all_answered(&desk.answers("answers.jsonl"), PROMPTS);
    let run = desk.only_run();
    let (state, failed) = (run["state"].as_str(), run["units"]["failed"].as_u64());
    assert_eq!((state, failed), (Some("completed"), Some(0)), "{kind}: {run}");
    let told = |text: &str| ran.stderr.lines().filter(|line| line.contains(text)).count();
    // A limit is not an outage: it is waited for as told.
    let expected = usize::from(kind != "http_429");
    let lines = (told("the provider does not answer"), told("the provider answers again"));
    assert_eq!(lines, (expected, expected), "{kind}: {}", ran.stderr);
    let spent = &run["spent"];
    let again = spent["retried"].as_u64().zip(spent["throttled"].as_u64()).map(|(a, b)| a + b);
    // Those that were under way, the few that found out, and no more.
    assert!(again.is_some_and(|again| (1..200).contains(&again)), "{kind}: {spent}");
}

/// Runs through an outage that begins when a part is answered.
fn through(desk: &Desk, sim: &Sim, begin: impl FnOnce()) -> Ran {
    let run = desk.command(&RUN).spawn().expect("running longhaul");
    until("the first answers", || sim.count("executed") >= PROMPTS / 10);
    begin();
    Ran::from(run.wait_with_output().expect("waiting for longhaul"))
}

#[test]
fn every_kind_of_outage_ends_with_all_answers_and_none_failed() {
    let check = |kind: &str| {
        let sim = Sim::start(&LATENCY);
        let mut desk = Desk::at(&sim, PROMPTS);
        desk.set("LONGHAUL_PROFILES__P__TIMEOUT", "2s");
        let outage = json!({ "kind": kind, "for_ms": u64::try_from(AWAY.as_millis()).ok() });
        let ran = through(&desk, &sim, || sim.post("/sim/outage", &outage.to_string()));
        survived(&desk, &ran, kind);
        let spent = &desk.only_run()["spent"];
        let unknown = spent["unknown_calls"].as_u64().expect("a count");
        // What was sent and never answered may have been billed, and nothing else is said to be.
        let booked = spent["calls"].as_u64().expect("a count") + unknown;
        assert!(sim.count("executed") <= booked, "{kind}: {spent}");
        assert!(unknown <= if kind.starts_with("http") { 0 } else { 40 }, "{kind}: {spent}");
    };
    // They wait for most of the time, so they may as well wait together.
    std::thread::scope(|scope| {
        for kind in ["refuse", "hang", "reset", "garbage", "http_503", "http_429"] {
            scope.spawn(move || check(kind));
        }
    });
}

#[test]
fn an_outage_eats_nothing_of_a_budget_that_is_nearly_spent() {
    let clean = Sim::start(&LATENCY);
    let desk = Desk::at(&clean, PROMPTS);
    let args = [&RUN[..], &["--max-tokens", "200"]].concat();
    let clean = desk.ok(&args).stderr;
    let cost = clean.lines().find_map(|line| line.strip_prefix("cost         $")).expect("what it cost");
    let cost: f64 = cost.split(' ').next().and_then(|cost| cost.parse().ok()).expect("a sum");
    // Room for the calls under way when connections break, since those may have been billed, and for as many later on.
    let cap = format!("{:.6}", cost + 33.0 * CEILING_USD);
    let sim = Sim::start(&LATENCY);
    let desk = Desk::at(&sim, PROMPTS);
    let run = desk.command(&[&args[..], &["--max-cost", &cap]].concat()).spawn().expect("running longhaul");
    until("the first answers", || sim.count("executed") >= PROMPTS / 10);
    sim.post("/sim/outage", r#"{"kind":"refuse","for_ms":3000}"#);
    let ran = Ran::from(run.wait_with_output().expect("waiting for longhaul"));
    survived(&desk, &ran, "refuse");
}

/// A balancer that speaks TLS, and at times something else.
async fn tls_relay(upstream: String, broken: watch::Receiver<bool>, refused: Arc<AtomicU64>) -> String {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let certificate = include_bytes!("../tls/cert.pem");
    let chain = CertificateDer::pem_slice_iter(certificate).collect::<Result<_, _>>().expect("a certificate");
    let key = PrivateKeyDer::from_pem_slice(include_bytes!("../tls/key.pem")).expect("a key");
    let config = ServerConfig::builder().with_no_client_auth().with_single_cert(chain, key);
    let acceptor = TlsAcceptor::from(Arc::new(config.expect("a certificate with its key")));
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("an address");
    tokio::spawn(async move {
        while let Ok((mut client, _)) = listener.accept().await {
            let (acceptor, upstream, mut broken) = (acceptor.clone(), upstream.clone(), broken.clone());
            let refused = Arc::clone(&refused);
            tokio::spawn(async move {
                if *broken.borrow_and_update() {
                    refused.fetch_add(1, Ordering::Relaxed);
                    return client.write_all(b"this is not TLS\r\n\r\n").await.unwrap_or_default();
                }
                let Ok(mut client) = acceptor.accept(client).await else { return };
                let mut upstream = TcpStream::connect(upstream).await.expect("the simulator");
                tokio::select! {
                    _ = tokio::io::copy_bidirectional(&mut client, &mut upstream) => {}
                    _ = broken.changed() => {}
                }
            });
        }
    });
    format!("https://127.0.0.1:{}/v1", address.port())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_provider_whose_tls_fails_for_a_while_is_waited_for() {
    let sim = Sim::start(&LATENCY);
    let broken = watch::Sender::new(false);
    let refused = Arc::new(AtomicU64::new(0));
    let url = tls_relay(sim.address().to_owned(), broken.subscribe(), Arc::clone(&refused)).await;
    let mut desk = Desk::new(PROMPTS, "openai", &url);
    desk.place.write("ca.pem", include_str!("../tls/cert.pem"));
    desk.set("LONGHAUL_PROFILES__P__CA_FILE", desk.place.path("ca.pem").to_str().expect("a path"));
    let ended = tokio::task::spawn_blocking(move || {
        let ran = through(&desk, &sim, || {
            broken.send_replace(true);
            until("a handshake that fails", || refused.load(Ordering::Relaxed) > 0);
            broken.send_replace(false);
        });
        survived(&desk, &ran, "tls");
    });
    ended.await.expect("the run");
}

#[test]
fn a_provider_that_was_never_there_is_an_error_at_once_and_the_same_command_goes_on() {
    let first = Sim::start(&[]);
    let desk = Desk::at(&first, 12);
    let port = first.address().rsplit_once(':').expect("a port").1.to_owned();
    first.stop();
    for mode in ["--sync", "--batch"] {
        let out = format!("answers{mode}.jsonl");
        let args = ["run", "prompts.txt", mode, "--out", &out, "--max-tokens", "50"];
        let began = Instant::now();
        let ran = desk.run(&args);
        let address = format!("cannot connect to 127.0.0.1:{port}");
        ran.fails(6, &[&address, "profile p", "repeat the command", "is stored"]);
        assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
        let run = desk.only_run();
        assert_eq!((&run["units"]["failed"], &run["units"]["total"]), (&json!(0), &json!(12)), "{run}");
        let sim = Sim::start_at(&port, &[]);
        desk.ok(&args);
        all_answered(&desk.answers(&out), 12);
        desk.ok(&["runs", "rm", &desk.run_id(), "--yes"]);
        sim.stop();
    }
}

/// A worker in the background is not a person who could start the provider now.
#[test]
fn a_worker_waits_for_a_provider_that_is_not_there_yet() {
    let first = Sim::start(&[]);
    let desk = Desk::at(&first, 12);
    let port = first.address().rsplit_once(':').expect("a port").1.to_owned();
    first.stop();
    desk.ok(&["run", "prompts.txt", "--sync", "--detach"]);
    let _worker = desk.start(&["work"]);
    until("the run is held", || desk.only_run()["hold"] == "outage");
    let run = desk.only_run();
    assert_eq!((&run["state"], &run["units"]["failed"]), (&json!("held"), &json!(0)), "{run}");
    let _sim = Sim::start_at(&port, &[]);
    until("all answers", || desk.only_run()["state"] == "completed");
}

#[test]
fn the_same_command_asks_again_what_failed() {
    let sim = Sim::with(r#"{"context_tokens":50}"#);
    let desk = Desk::at(&sim, 0);
    let long = "word ".repeat(400);
    desk.place.write("prompts.txt", &format!("short\n{long}\nalso short\n"));
    desk.run(&RUN).fails(3, &["1 request", "context_too_long", "the same command"]);
    let run = desk.only_run();
    assert_eq!(run["state"], "partly_failed", "{run}");
    let message = run["message"].as_str().expect("a reason");
    assert!(message.starts_with("1 of 3 requests failed, the first with: context_too_long"), "{message}");
    let port = sim.address().rsplit_once(':').expect("a port").1.to_owned();
    sim.stop();
    let roomy = Sim::start_at(&port, &[]);
    let ran = desk.ok(&RUN);
    assert!(ran.stderr.contains("asking again what has no answer: 1 request"), "{ran:?}");
    all_answered(&desk.answers("answers.jsonl"), 3);
    assert_eq!((roomy.count("executed"), &desk.only_run()["state"]), (1, &json!("completed")));
}

/// A slow model, and a run that no other process works on.
#[test]
fn the_only_process_does_not_speak_of_another() {
    let sim = Sim::start(&["--slots", "1", "--latency", "4s"]);
    let desk = Desk::at(&sim, 2);
    let ran = Ran::from(desk.command(&RUN).stdin(Stdio::null()).output().expect("running longhaul"));
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert!(!ran.stderr.contains("another process"), "{ran:?}");
}

#[test]
fn a_sheet_survives_an_outage_too() {
    let sim = Sim::start(&LATENCY);
    let desk = Desk::at(&sim, 0);
    let rows: String = (0..400).map(|row| format!("the text of row {row}\n")).collect();
    desk.place.write("texts.csv", &format!("text\n{rows}"));
    desk.place.write("rubric.toml", RUBRIC);
    let run = desk.command(&SCORE).spawn().expect("running longhaul");
    until("the first answers", || sim.count("executed") >= 40);
    sim.post("/sim/outage", r#"{"kind":"refuse","for_ms":3000}"#);
    let ran = Ran::from(run.wait_with_output().expect("waiting for longhaul"));
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let told = |text: &str| ran.stderr.lines().filter(|line| line.contains(text)).count();
    let lines = (told("the provider does not answer"), told("the provider answers again"));
    assert_eq!(lines, (1, 1), "{}", ran.stderr);
    assert!(ran.stdout.contains("400 of 400 done\n"), "none is blank: {ran:?}");
}

/// Without a sheet's provider, the error comes at once as well.
#[test]
fn a_sheet_whose_provider_was_never_there_is_an_error_at_once() {
    let place = Place::new();
    place.write("texts.csv", "text\none\ntwo\n");
    place.write("rubric.toml", RUBRIC);
    let desk = Desk { place, ..Desk::new(0, "openai", "http://127.0.0.1:9/v1") };
    desk.run(&SCORE).fails(6, &["cannot connect to 127.0.0.1:9", "repeat the command"]);
}
