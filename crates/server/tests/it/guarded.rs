//! Who may come in, over a socket.

use longhaul_server::{Scope, ServerOptions};
use longhaul_sim::SimOptions;
use reqwest::{Method, StatusCode};

use crate::stage::{Stage, json_of};

#[tokio::test]
async fn problems_come_in_the_form_of_their_family() {
    let stage = Stage::new().await;
    let rows = [
        ("/api/v1/nothing", "", "/detail"),
        ("/v1/nothing", "", "/error/message"),
        ("/v1/messages/nothing", "", "/error/message"),
        ("/v1/nothing", "anthropic-version", "/error/message"),
    ];
    for (path, header, place) in rows {
        let mut request = stage.request(Method::GET, path);
        if !header.is_empty() {
            request = request.header(header, "2023-06-01");
        }
        let response = request.send().await.expect("an answer");
        assert_eq!(response.status(), StatusCode::NOT_FOUND, "{path}");
        assert!(
            response.headers().contains_key("x-request-id") && response.headers().contains_key("request-id")
        );
        let body = json_of(response).await;
        let text = body.pointer(place).and_then(|text| text.as_str()).expect(path);
        assert!(text.contains(path), "{text}");
        let is_anthropic = body["type"] == "error";
        assert_eq!(is_anthropic, path.contains("messages") || !header.is_empty(), "{body}");
    }
    stage.stop().await;
}

#[tokio::test]
async fn beyond_loopback_a_token_is_asked_for_before_a_body_is_read() {
    let options = ServerOptions::default().for_address("0.0.0.0".parse().expect("an address"));
    let stage = Stage::with(options, SimOptions::default()).await;
    let live = stage.request(Method::GET, "/healthz").send().await.expect("an answer");
    assert_eq!(live.status(), StatusCode::OK);
    let refused = stage.request(Method::POST, "/v1/files").body("x".repeat(1_000_000)).send().await;
    // The server may hang up while the body is still being sent; what it may not do is to take it.
    if let Ok(refused) = refused {
        assert_eq!(refused.status(), StatusCode::UNAUTHORIZED);
    }
    let token = stage.ctx.tokens.add("reader", &[Scope::Read]).expect("a token");
    let ready =
        stage.request(Method::GET, "/v1/nothing").bearer_auth(&token).send().await.expect("an answer");
    assert_eq!(ready.status(), StatusCode::NOT_FOUND, "let in, and there is nothing");
}
