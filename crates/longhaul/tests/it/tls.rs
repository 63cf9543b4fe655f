//! A server with a certificate of its own, and HTTP/2 with and without one. The certificate is for this test alone: its key is here
//! for everybody to read.

use std::net::SocketAddr;

use reqwest::{Certificate, Client, ClientBuilder, StatusCode, Version};
use serde_json::{Value, json};

use crate::place::Place;
use crate::served::Served;

const CERTIFICATE: &str = include_str!("tls/cert.pem");
const KEY: &str = include_str!("tls/key.pem");

fn encrypted(place: &Place) -> Served {
    place.write("cert.pem", CERTIFICATE);
    place.write("key.pem", KEY);
    Served::start(place, &["--no-workers"], &[("LONGHAUL_SERVER__TLS", "cert.pem,key.pem")])
}

/// A client that trusts the certificate and nothing else.
fn trusting() -> ClientBuilder {
    let certificate = Certificate::from_pem(CERTIFICATE.as_bytes()).expect("a certificate");
    stranger().tls_certs_only([certificate])
}

fn stranger() -> ClientBuilder {
    // The first test to come here installs it; the others find it.
    let _ = rustls::crypto::ring::default_provider().install_default();
    Client::builder().no_proxy()
}

async fn get(client: &Client, url: &str) -> (Version, StatusCode, String) {
    let response = client.get(url).send().await.expect("an answer");
    (response.version(), response.status(), response.text().await.expect("a body"))
}

#[tokio::test]
async fn a_certificate_of_its_own_is_served_to_http2_and_http1_alike() {
    let place = Place::new();
    let served = encrypted(&place);
    assert!(served.url.starts_with("https://127.0.0.1:"), "{}", served.url);
    let health = format!("{}/healthz", served.url);
    let two = trusting().build().expect("a client");
    let one = trusting().http1_only().build().expect("a client");
    assert_eq!(get(&two, &health).await, (Version::HTTP_2, StatusCode::OK, "ok\n".to_owned()));
    assert_eq!(get(&one, &health).await, (Version::HTTP_11, StatusCode::OK, "ok\n".to_owned()));
    for client in [&two, &one] {
        let job = json!({"kind": "echo", "payload": {"hello": 1}}).to_string();
        let request = client.post(format!("{}/api/v1/jobs", served.url)).body(job);
        let stored = request.header("content-type", "application/json").send().await.expect("an answer");
        assert_eq!(stored.status(), StatusCode::CREATED);
    }
    // A stream comes piece by piece over HTTP/2 too.
    let mut events = two.get(format!("{}/api/v1/events?after=0", served.url)).send().await.expect("a stream");
    assert_eq!(events.version(), Version::HTTP_2);
    let first = events.chunk().await.expect("a piece").expect("a stream that goes on");
    assert!(first.starts_with(b"id: "), "{first:?}");
}

#[tokio::test]
async fn who_does_not_trust_the_certificate_or_speaks_in_the_clear_is_told_nothing() {
    let place = Place::new();
    let served = encrypted(&place);
    let stranger = stranger().build().expect("a client");
    assert!(stranger.get(&served.url).send().await.is_err(), "nobody vouches for it");
    let clear = served.url.replace("https://", "http://");
    let client = trusting().build().expect("a client");
    assert!(client.get(&clear).send().await.is_err(), "there is no answer in the clear");
    // The name that HTTP/2 calls authority is checked as Host is.
    let address: SocketAddr = served.url.trim_start_matches("https://").parse().expect("an address");
    let renamed = trusting().resolve("other.example", address).build().expect("a client");
    let url = format!("https://other.example:{}/api/v1/queues", address.port());
    let (version, status, body) = get(&renamed, &url).await;
    assert_eq!((version, status), (Version::HTTP_2, StatusCode::MISDIRECTED_REQUEST), "{body}");
    let problem: Value = serde_json::from_str(&body).expect("JSON");
    assert_eq!(problem["code"], "wrong_host");
}

#[tokio::test]
async fn http2_is_spoken_in_the_clear_to_whoever_begins_with_it() {
    let place = Place::new();
    let served = Served::start(&place, &["--no-workers"], &[]);
    let client = trusting().http2_prior_knowledge().build().expect("a client");
    let (version, status, _) = get(&client, &format!("{}/readyz", served.url)).await;
    assert_eq!((version, status), (Version::HTTP_2, StatusCode::OK));
}

#[test]
fn a_certificate_that_cannot_be_used_is_told_at_the_start() {
    let place = Place::new();
    place.write("cert.pem", CERTIFICATE);
    place.write("key.pem", "no key");
    for files in ["cert.pem,key.pem", "none.pem,key.pem", "cert.pem"] {
        let mut command = place.command(&["up", "--port", "0", "--no-workers"]);
        let output = command.env("LONGHAUL_SERVER__TLS", files).output().expect("running longhaul");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && said.contains("server.tls"), "{files}: {said}");
    }
}
