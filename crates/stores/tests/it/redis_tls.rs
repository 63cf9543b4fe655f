//! Redis over TLS, with a certificate that this test makes for itself.

use std::path::Path;
use std::process::{Command, Stdio};

use longhaul_queue::testing::bench::{id, job};
use longhaul_queue::{Clock, Error, Store, SystemClock};
use longhaul_stores::redis::{RedisStore, RedisUrl};

use crate::servers::redis::RedisServer;

fn openssl(folder: &Path, args: &[&str]) {
    let mut command = Command::new("openssl");
    command.current_dir(folder).args(args).stdout(Stdio::null()).stderr(Stdio::null());
    assert!(command.status().expect("openssl runs").success(), "openssl {args:?}");
}

/// An authority of its own, and a server's certificate for 127.0.0.1 that it signed.
fn certificates(folder: &Path) {
    let key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"];
    let ca = ["req", "-x509", "-days", "2", "-subj", "/CN=test", "-keyout", "ca.key", "-out", "ca.pem"];
    openssl(folder, &[&ca[..], &key[..]].concat());
    let request = ["req", "-subj", "/CN=127.0.0.1", "-keyout", "server.key", "-out", "server.csr"];
    openssl(folder, &[&request[..], &key[..]].concat());
    std::fs::write(folder.join("names"), "subjectAltName=IP:127.0.0.1\n").expect("it can be written");
    let sign = ["x509", "-req", "-days", "2", "-in", "server.csr", "-CA", "ca.pem", "-CAkey", "ca.key"];
    openssl(folder, &[&sign[..], &["-CAcreateserial", "-extfile", "names", "-out", "server.pem"]].concat());
}

fn url(port: u16, parameters: &str) -> RedisUrl {
    format!("rediss://127.0.0.1:{port}?name=tls{parameters}").parse().expect("a URL")
}

#[tokio::test]
async fn a_server_with_a_private_authority_is_reached_through_its_file_only() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    certificates(folder.path());
    let file = |name: &str| folder.path().join(name).to_str().expect("a plain path").to_owned();
    let (certificate, key, ca) = (file("server.pem"), file("server.key"), file("ca.pem"));
    let tls = ["--tls-cert-file", &certificate, "--tls-key-file", &key, "--tls-auth-clients", "no"];
    let server = RedisServer::start_tls(&tls);

    let store = RedisStore::connect(&url(server.port, &format!("&ca={ca}"))).await.expect("the store opens");
    let mut changes = store.watch();
    store.insert(vec![job(1)], SystemClock.now()).await.expect("insert answers");
    changes.changed().await.expect("it is heard over TLS too");
    assert_eq!(store.get(vec![id(1)]).await.expect("get answers").len(), 1);

    let stranger =
        RedisStore::connect(&url(server.port, "")).await.map(|_| ()).expect_err("nobody vouches for it");
    assert!(stranger.to_string().contains("certificate"), "{stranger}");
    let missing = RedisStore::connect(&url(server.port, "&ca=/nowhere.pem")).await.map(|_| ());
    assert!(matches!(&missing, Err(Error::Invalid(text)) if text.contains("/nowhere.pem")), "{missing:?}");
}
