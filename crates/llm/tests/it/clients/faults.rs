//! Servers that misbehave, one way each, for every dialect.

use axum::http::StatusCode;
use axum::response::IntoResponse;
use futures_util::StreamExt;
use longhaul_llm::types::{Answer, Delta, Stop, Usage};
use longhaul_llm::wire::{anthropic, gemini, openai};
use longhaul_llm::{Class, Error, Profile, ProviderKind, connect};
use serde_json::json;
use tokio::net::TcpListener;

use super::stub::{KEY, Stub, Then, client, impatient, profile, question, raw};

const KINDS: [ProviderKind; 3] = [ProviderKind::OpenAi, ProviderKind::Anthropic, ProviderKind::Gemini];

async fn failure(profile: &Profile) -> Error {
    let client = connect(profile).expect("a client");
    let error = client.complete(&question()).await.expect_err("a failure");
    assert!(!error.to_string().contains(KEY), "{error}");
    error
}

#[tokio::test]
async fn a_server_that_hangs_times_out_and_may_have_charged() {
    for head in ["", "HTTP/1.1 200 OK\r\ncontent-type: appl", "HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n{"]
    {
        let url = raw(head, Then::Hang).await;
        for kind in KINDS {
            let error = failure(&impatient(kind, &url)).await;
            assert_eq!((error.class, error.maybe_billed), (Class::Network, true), "{kind} {head:?}: {error}");
        }
    }
}

#[tokio::test]
async fn no_connection_costs_nothing() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    drop(listener);
    for kind in KINDS {
        let error = failure(&profile(kind, &url)).await;
        assert_eq!((error.class, error.maybe_billed), (Class::Unreachable, false), "{kind}: {error}");
        assert!(error.message.starts_with("cannot connect to 127.0.0.1"), "{error}");
    }
}

#[tokio::test]
async fn a_name_without_an_address_and_a_failed_handshake_are_no_connection_either() {
    let no_tls = raw("HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n", Then::Close).await;
    for url in ["http://no-such-host.invalid".to_owned(), no_tls.replace("http://", "https://")] {
        for kind in KINDS {
            let error = failure(&profile(kind, &url)).await;
            assert_eq!((error.class, error.maybe_billed), (Class::Unreachable, false), "{kind}: {error}");
            assert!(error.message.starts_with("cannot connect to "), "{error}");
        }
    }
}

#[tokio::test]
async fn a_connection_that_drops_may_have_cost() {
    for reply in
        ["", "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n{\"id\""]
    {
        let url = raw(reply, Then::Close).await;
        for kind in KINDS {
            let error = failure(&profile(kind, &url)).await;
            assert_eq!(
                (error.class, error.maybe_billed),
                (Class::Network, true),
                "{kind} {reply:?}: {error}"
            );
        }
    }
}

#[tokio::test]
async fn a_web_page_is_no_answer() {
    let page = "<html><head><title>Welcome to the hotel</title></head></html>";
    for (status, class, billed) in [(200, Class::Network, true), (502, Class::Overloaded, false)] {
        let stub = Stub::start(move |_| {
            (StatusCode::from_u16(status).unwrap(), axum::response::Html(page)).into_response()
        });
        let stub = stub.await;
        for kind in KINDS {
            let error = failure(&profile(kind, &stub.url)).await;
            assert_eq!(
                (error.class, error.status, error.maybe_billed),
                (class, Some(status), billed),
                "{kind}"
            );
            assert!(error.message.contains("Welcome to the hotel"), "{error}");
            let streamed = client(kind, &stub.url).stream(&question()).await.map(drop).unwrap_err();
            assert_eq!((streamed.class, streamed.status), (class, Some(status)), "{kind}");
        }
    }
}

#[tokio::test]
async fn an_answer_without_end_is_bounded() {
    let stub = Stub::start(|_| "x".repeat(100_000).into_response()).await;
    for kind in KINDS {
        let error = failure(&Profile { body_bytes_max: 10_000, ..profile(kind, &stub.url) }).await;
        assert_eq!(error.class, Class::Network);
        assert!(error.message.contains("longer than 10000 bytes"), "{error}");
    }
    let stub = Stub::start(|_| (StatusCode::BAD_REQUEST, "x".repeat(1_000_000)).into_response()).await;
    for kind in KINDS {
        let error = failure(&profile(kind, &stub.url)).await;
        assert_eq!(error.class, Class::BadRequest);
        assert!(error.message.len() < 1000, "{}", error.message.len());
    }
}

#[tokio::test]
async fn a_refused_key_is_never_repeated() {
    let stub = Stub::start(|seen| {
        // A careless gateway sends back what it was sent.
        let message = format!("bad key {} {}", seen.header("authorization"), seen.header("x-goog-api-key"));
        (StatusCode::UNAUTHORIZED, axum::Json(json!({ "error": { "message": message } }))).into_response()
    })
    .await;
    for kind in KINDS {
        let error = failure(&profile(kind, &stub.url)).await;
        assert_eq!((error.class, error.status), (Class::Auth, Some(401)));
        assert!(error.message.contains('…'), "{error}");
    }
}

#[tokio::test]
async fn a_redirect_is_told_and_not_followed() {
    let stub = Stub::start(|_| {
        (StatusCode::TEMPORARY_REDIRECT, [("location", "http://elsewhere.example/v1")]).into_response()
    })
    .await;
    for kind in KINDS {
        let error = failure(&profile(kind, &stub.url)).await;
        assert_eq!(error.class, Class::BadRequest);
        assert!(error.message.contains("elsewhere.example"), "{error}");
    }
    assert_eq!(stub.seen().len(), KINDS.len());
}

/// The events of an answer as a body that is cut before the last `missing` events.
fn stream_body(kind: ProviderKind, missing: usize) -> String {
    let answer = Answer {
        id: "r".to_owned(),
        model: "m-1".to_owned(),
        text: "a text that is long enough for several pieces of a stream".to_owned(),
        tool_calls: Vec::new(),
        vectors: Vec::new(),
        own: None,
        stop: Stop::End,
        usage: Usage { fresh_in: 5, out: 7, ..Usage::default() },
    };
    let mut events = match kind {
        ProviderKind::Anthropic => anthropic::answer_to_events(&answer),
        ProviderKind::Gemini => gemini::answer_to_events(&answer),
        ProviderKind::OpenAi | ProviderKind::Sim => {
            openai::answer_to_events(&answer, openai::EventOptions { created_s: 1, include_usage: true })
        }
    };
    events.truncate(events.len() - missing);
    events.iter().map(longhaul_llm::sse::SseEvent::to_text).collect()
}

async fn read(profile: &Profile) -> (String, Option<Answer>, Option<Error>) {
    let client = connect(profile).expect("a client");
    let reply = client.stream(&question()).await.expect("a stream");
    let (mut text, mut answer, mut error) = (String::new(), None, None);
    let mut stream = reply.value;
    while let Some(delta) = stream.next().await {
        assert!(answer.is_none() && error.is_none(), "nothing follows the end");
        match delta {
            Ok(Delta::Text(piece)) => text.push_str(&piece),
            Ok(Delta::Own { .. }) => {}
            Ok(Delta::End(whole)) => answer = Some(whole),
            Err(problem) => error = Some(problem),
        }
    }
    (text, answer, error)
}

fn head(rest: &str) -> String {
    format!("HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n{rest}\r\n")
}

#[tokio::test]
async fn a_whole_stream_is_read_however_it_is_framed() {
    for kind in KINDS {
        let body = stream_body(kind, 0);
        // By length, by the end of the connection, and without a type.
        let heads = [
            head(&format!("content-length: {}\r\n", body.len())),
            head(""),
            "HTTP/1.1 200 OK\r\n\r\n".to_owned(),
        ];
        for head in heads {
            let url = raw(format!("{head}{body}"), Then::Close).await;
            let (text, answer, error) = read(&profile(kind, &url)).await;
            assert!(error.is_none(), "{kind} {head:?}: {error:?}");
            assert_eq!(answer.unwrap().text, text);
        }
    }
}

#[tokio::test]
async fn a_stream_that_drops_or_falls_silent_ends_in_one_error() {
    for kind in KINDS {
        let body = stream_body(kind, if kind == ProviderKind::Gemini { 1 } else { 4 });
        let whole = head("content-length: 100000\r\n");
        for (head, then) in [(head(""), Then::Close), (whole.clone(), Then::Close), (whole, Then::Hang)] {
            let url = raw(format!("{head}{body}"), then).await;
            let (text, answer, error) = read(&impatient(kind, &url)).await;
            let error = error.expect("an error");
            assert!(!text.is_empty() && answer.is_none(), "{kind}");
            assert_eq!((error.class, error.maybe_billed), (Class::Network, true), "{kind}: {error}");
        }
    }
}

#[tokio::test]
async fn a_stream_without_end_is_bounded() {
    for kind in KINDS {
        let event = stream_body(kind, 0);
        let body = format!("{}{}", head(""), ": ping\n\n".repeat(10_000));
        let url = raw(body, Then::Hang).await;
        let profile = Profile { body_bytes_max: event.len(), ..impatient(kind, &url) };
        let (_, _, error) = read(&profile).await;
        assert!(error.unwrap().message.contains("longer than"), "{kind}");
    }
}
