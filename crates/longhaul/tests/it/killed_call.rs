//! A call of a client that was under way when the server was killed: it may have been billed, and is told so.

use std::time::Duration;

use serde_json::{Value, json};

use crate::place::Place;
use crate::served::Served;
use crate::workers::until;

/// Calls that are booked and not settled.
fn open_calls(place: &Place) -> i64 {
    let Ok(file) = rusqlite::Connection::open_with_flags(
        place.path(".longhaul/llm.db"),
        rusqlite::OpenFlags::SQLITE_OPEN_READ_ONLY,
    ) else {
        return 0;
    };
    file.query_row("SELECT count(*) FROM calls WHERE state = 0", [], |row| row.get(0)).unwrap_or(0)
}

fn client(url: &str) -> reqwest::Client {
    longhaul_llm::plain_client(url, Duration::from_secs(60)).expect("a client")
}

/// Asks for an answer that is a long time coming, and does not wait for it.
async fn ask(served: &Served) -> tokio::task::JoinHandle<()> {
    say(served, "[[sim:slow 300s]] hello")
}

fn say(served: &Served, text: &str) -> tokio::task::JoinHandle<()> {
    let body =
        json!({"model": "sim-small", "max_tokens": 1000, "messages": [{"role": "user", "content": text}]});
    let request = client(&served.url).post(format!("{}/v1/chat/completions", served.url));
    let request = request.header("content-type", "application/json").body(body.to_string());
    tokio::spawn(async move { drop(request.send().await) })
}

async fn costs(served: &Served) -> Value {
    let url = format!("{}/api/v1/costs", served.url);
    let response = client(&url).get(&url).send().await.expect("an answer");
    serde_json::from_str(&response.text().await.expect("a body")).expect("JSON")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_under_way_when_the_server_is_killed_is_told_as_maybe_billed() {
    let place = Place::new();
    let start = || Served::start(&place, &["--profile", "sim"], &[]);
    let mut first = start();
    let second = start();
    let (one, two) = (ask(&first).await, ask(&second).await);
    until("both calls are booked", || open_calls(&place) == 2);
    assert!(!place.run(&["costs"]).stderr.contains("may have been billed"), "both servers live");
    first.process.kill();
    // Whoever looks is told, at once: the server that lives on, and one that starts.
    let told = costs(&second).await;
    assert_eq!(told["unknown_calls"], 1, "{told}");
    assert!(told["unknown_ceiling_usd"].as_f64() > Some(0.0), "{told}");
    assert_eq!(
        (told["items"][0]["calls"].as_u64(), told["items"][0]["unknown_calls"].as_u64()),
        (Some(0), Some(1))
    );
    assert_eq!(open_calls(&place), 1, "that of the living one is under way");
    let said = place.run(&["costs"]).stderr;
    assert!(said.contains("1 call with no known outcome may have been billed"), "{said}");
    drop(second);
    let third = start();
    until("the books are opened", || open_calls(&place) == 0);
    assert_eq!(costs(&third).await["unknown_calls"], 2);
    // A bill below what is booked for an answer is wrong usage, here and through the server.
    say(&third, "hello").await.expect("an end");
    let bill = ["costs", "resolve", "--bill", "0.000000001", "--yes"];
    for server in [&[][..], &["--server", &third.url]] {
        let ran = place.run(&[&bill[..], server].concat());
        ran.fails(2, &["--bill: ", "is less than", "check that the bill covers the same days"]);
    }
    one.abort();
    two.abort();
}
