//! `bench` on servers: it measures beside raw and leaves nothing. How fast it is, is not for a test to say.

use longhaul_stores::temporary::Kind;
use serde_json::Value;

use crate::place::Place;
use crate::servers::server;

/// The figures of a quick run of one benchmark.
fn figures(place: &Place, args: &[&str]) -> Vec<Value> {
    let text = place.ok(&[&["bench", "--quick", "-o", "jsonl"], args].concat());
    text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

fn pickups_beside_raw(kind: &str, url: &str) {
    let place = Place::new();
    let figures = figures(&place, &["--only", "pickup", "--store", url]);
    let ours: Vec<&Value> = figures
        .iter()
        .filter(|figure| !figure["name"].as_str().expect("a name").starts_with("raw"))
        .collect();
    assert_eq!(ours.len(), 4, "two ways, two percentiles: {figures:?}");
    for figure in ours {
        assert_eq!(figure["level"], kind);
        let single = &figure["singles"][0];
        let millis = |which: &str| single[which].as_f64().unwrap_or(0.0);
        assert!(millis("ours") > 0.0 && millis("raw") > 0.0, "{figure}");
    }
}

#[test]
fn a_redis_server_is_measured_beside_raw_and_nothing_is_left() {
    let server = server(Kind::Redis);
    let url = server.url();
    let place = Place::new();
    let mut connection = redis::Client::open(url.as_str()).expect("a URL").get_connection().expect("Redis");
    let mut keys = || -> Vec<String> {
        let mut keys: Vec<String> = redis::cmd("KEYS").arg("*").query(&mut connection).expect("keys");
        keys.sort();
        keys
    };
    place.ok(&["enqueue", "noop", "--store", &url]);
    let before = keys();
    assert!(!before.is_empty());
    pickups_beside_raw("redis", &url);
    assert_eq!(keys(), before, "what was there is untouched, and nothing else is there");
}

#[test]
fn a_postgres_server_is_measured_beside_raw_and_nothing_is_left() {
    let server = server(Kind::Postgres);
    let url = server.url();
    let place = Place::new();
    place.ok(&["enqueue", "noop", "--store", &url]);
    pickups_beside_raw("postgres", &url);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let left: i64 = runtime.block_on(async {
        let (client, connection) =
            tokio_postgres::connect(&url, tokio_postgres::NoTls).await.expect("Postgres");
        tokio::spawn(connection);
        let sql = "SELECT count(*) FROM pg_namespace WHERE nspname LIKE 'bench%'";
        client.query_one(sql, &[]).await.expect("a count").get(0)
    });
    assert_eq!(left, 0);
    let jobs = place.json(&["jobs", "ls", "--store", &url]);
    assert_eq!(jobs["items"].as_array().map(Vec::len), Some(1), "what was there is untouched: {jobs}");
}

#[test]
fn a_server_of_its_own_is_started_for_it() {
    let place = Place::new();
    let figures = figures(&place, &["--only", "pickup", "--own", "redis"]);
    assert!(figures.iter().any(|figure| figure["name"] == "raw blocked read, p50"), "{figures:?}");
}

#[test]
fn what_cannot_be_measured_is_told() {
    let place = Place::new();
    place.run(&["bench", "--store", "rediss://127.0.0.1:1"]).fails(2, &["plain connections", "--own"]);
    place.run(&["bench", "--own", "redis", "--store", "sqlite://x.db"]).fails(2, &["--own", "--store"]);
}
