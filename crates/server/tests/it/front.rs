//! `/` in a browser, and what every answer carries.

use longhaul_server::ServerOptions;
use longhaul_sim::SimOptions;
use reqwest::{Method, StatusCode};

use crate::stage::Stage;

async fn front(stage: &Stage, host: &str) -> (reqwest::header::HeaderMap, String) {
    let response = stage.request(Method::GET, "/").header("host", host).send().await.expect("an answer");
    assert_eq!(response.status(), StatusCode::OK);
    (response.headers().clone(), response.text().await.expect("a page"))
}

#[tokio::test]
async fn the_page_tells_what_the_banner_tells_and_runs_nothing() {
    let stage = Stage::new().await;
    let host = stage.address().to_string();
    let (headers, page) = front(&stage, &host).await;
    for part in
        [&format!("http://{host}/v1"), "from openai import OpenAI", "/metrics", "/mcp", "sqlite", "sim"]
    {
        assert!(page.contains(part), "{part}: {page}");
    }
    for active in ["<script", " onclick=", " onload=", " onerror=", "javascript:"] {
        assert!(!page.contains(active), "{active}: {page}");
    }
    let policy = headers["content-security-policy"].to_str().expect("a text");
    assert!(policy.starts_with("default-src 'none'; style-src 'sha256-"), "{policy}");
    assert!(headers["content-type"] == "text/html; charset=utf-8" && headers["cache-control"] == "no-store");
    stage.stop().await;
}

#[tokio::test]
async fn under_a_token_the_page_tells_a_stranger_nothing_of_the_server_and_escapes_what_they_sent() {
    let options = ServerOptions { token_required: true, ..ServerOptions::default() };
    let stage = Stage::with(options, SimOptions::default()).await;
    let (_, page) = front(&stage, "jobs.example.org").await;
    assert!(page.contains("needs a token") && page.contains("http://jobs.example.org/v1"), "{page}");
    for known in ["sqlite", "sim", "fsync", "Providers"] {
        assert!(!page.contains(known), "{known}: {page}");
    }
    let sent = b"GET / HTTP/1.1\r\nhost: a\"><b>'&\r\nconnection: close\r\n\r\n";
    let answer = crate::raw::send(&stage, sent).await.expect("an answer");
    let page = String::from_utf8(answer.body).expect("text");
    assert!(!page.contains("<b>"), "{page}");
    stage.stop().await;
}

#[tokio::test]
async fn no_answer_is_to_be_guessed_at() {
    let options = ServerOptions { token_required: true, ..ServerOptions::default() };
    let stage = Stage::with(options, SimOptions::default()).await;
    for path in ["/", "/healthz", "/nothing", "/api/v1/jobs", "/v1/files/x/content", "/metrics", "/mcp"] {
        let response = stage.request(Method::GET, path).send().await.expect("an answer");
        assert_eq!(response.headers()["x-content-type-options"], "nosniff", "{path}");
    }
    stage.stop().await;
}

#[tokio::test]
async fn a_body_that_announces_too_much_is_refused_at_once() {
    let stage = Stage::new().await;
    for path in ["/api/v1/jobs", "/v1/chat/completions", "/v1/files", "/v1/messages/batches", "/mcp"] {
        // Without a byte of the body: whoever waited for it would wait until the test's time is over.
        let head = format!(
            "POST {path} HTTP/1.1\r\nhost: {}\r\nx-longhaul: 1\r\nconnection: close\r\n\
             content-type: application/json\r\ncontent-length: 1000000000000000000\r\n\r\n",
            stage.address()
        );
        let answer = crate::raw::send(&stage, head.as_bytes()).await.expect("an answer");
        assert_eq!(answer.status, 413, "{path}: {answer:?}");
    }
    stage.stop().await;
}
