//! Encrypted connections to a server with a certificate of its own making.

use std::path::Path;

use longhaul_queue::testing::bench::job;
use longhaul_queue::{Clock, Error, Store, SystemClock};
use longhaul_stores::postgres::{PostgresOptions, PostgresStore};

use crate::servers::postgres::Server;

struct Case<'a> {
    host: &'a str,
    mode: &'a str,
    root: Option<&'a Path>,
    /// Part of the refusal, if there must be one.
    refusal: Option<&'a str>,
}

/// Opens a store and says whether all its connections are encrypted.
async fn open(server: &Server, case: &Case<'_>) -> Result<bool, Error> {
    let (schema, port) = (Server::schema(), server.port());
    let Case { host, mode, root, .. } = case;
    let root = root.map(|root| format!("&sslrootcert={}", root.display())).unwrap_or_default();
    let url = format!(
        "postgres://longhaul@{host}:{port}/postgres?schema={schema}&application_name={schema}&sslmode={mode}{root}"
    );
    let store = PostgresStore::open(&url.parse()?, PostgresOptions::default()).await?;
    store.insert(vec![job(1)], SystemClock.now()).await?;
    let sql = "SELECT bool_and(s.ssl), count(*) FROM pg_stat_ssl s JOIN pg_stat_activity a USING (pid)
         WHERE a.application_name = $1";
    let row = server.connect().await.query_one(sql, &[&schema]).await.expect("it answers");
    assert!(row.get::<_, i64>(1) >= 2, "one to work on, one to listen on");
    Ok(row.get(0))
}

#[tokio::test]
async fn connections_are_encrypted_and_servers_believed_as_the_url_says() {
    let server = Server::start("fsync=off");
    let plain = Case { host: "localhost", mode: "require", root: None, refusal: None };
    let error = open(&server, &plain).await.expect_err("the server offers no encryption");
    assert!(matches!(&error, Error::Denied(text) if text.contains("does not support TLS")), "{error:?}");
    let (root, own) = server.offer_tls().await;
    let other = Server::start("fsync=off");
    let (stranger, _) = other.offer_tls().await;
    let (root, own, stranger) = (Some(root.as_path()), Some(own.as_path()), Some(stranger.as_path()));
    let table = [
        ("127.0.0.1", "require", None, None),
        ("127.0.0.1", "prefer", None, None),
        ("127.0.0.1", "verify-ca", root, None),
        ("localhost", "verify-full", root, None),
        ("localhost", "verify-full", own, None),
        // Signed, but not for this name.
        ("127.0.0.1", "verify-full", root, Some("not valid for")),
        ("127.0.0.1", "verify-full", own, Some("not valid for")),
        // Whoever names a root certificate wants it to count.
        ("localhost", "require", stranger, Some("invalid peer certificate")),
        ("localhost", "verify-ca", stranger, Some("invalid peer certificate")),
        ("localhost", "verify-full", stranger, Some("invalid peer certificate")),
        ("localhost", "verify-full", None, Some("add sslrootcert=FILE")),
        ("localhost", "verify-ca", Some(Path::new("/nowhere.pem")), Some("/nowhere.pem cannot be read")),
        ("localhost", "verify-ca", Some(Path::new("/dev/null")), Some("no certificate")),
    ];
    for (host, mode, root, refusal) in table {
        let case = Case { host, mode, root, refusal };
        let name = format!("{host} {mode} {root:?}");
        match (open(&server, &case).await, case.refusal) {
            (Ok(encrypted), None) => assert!(encrypted, "{name}"),
            (Err(Error::Invalid(text) | Error::Denied(text)), Some(part)) => {
                assert!(text.contains(part), "{name}: {text}");
            }
            (reply, _) => panic!("{name}: {reply:?}"),
        }
    }
    let disabled = Case { host: "localhost", mode: "disable", root: None, refusal: None };
    assert!(!open(&server, &disabled).await.expect("it opens"), "it is not encrypted when it must not be");
}
