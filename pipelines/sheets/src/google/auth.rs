//! Who we are to Google: a service account proves itself with a signed claim and gets a token for an hour.
//! The key leaves this file only as a signature.

use std::fmt;
use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use longhaul_llm::HttpClient;
use longhaul_llm::profile::Secret;
use longhaul_queue::{Clock, Timestamp};
use ring::rand::SystemRandom;
use ring::signature::{RSA_PKCS1_SHA256, RsaKeyPair};
use serde::Deserialize;
use serde_json::json;
use tokio::sync::Mutex;

use super::super::places::SinkError;
use super::super::{Error, Result};
use super::errors::{Failure, broken, outage};
use super::{GoogleOptions, client};

const SCOPE: &str = "https://www.googleapis.com/auth/spreadsheets";
const GRANT: &str = "urn:ietf:params:oauth:grant-type:jwt-bearer";
const TOKEN_URL: &str = "https://oauth2.googleapis.com/token";
/// What is read of a key file; one has some 3 KiB.
const KEY_FILE_BYTES_MAX: u64 = 64 * 1024;
/// How long a claim holds; the longest that Google takes.
const CLAIM_SECONDS: i64 = 3600;
/// A token is renewed so long before its end, so that none ends on its way.
const RENEW_BEFORE: Duration = Duration::from_secs(60);

/// A service account and the key that it proves itself with.
#[derive(Clone)]
pub struct ServiceKey {
    file: PathBuf,
    email: String,
    key_id: Option<String>,
    token_url: String,
    pair: Arc<RsaKeyPair>,
}

/// Shows neither the key nor anything made of it.
impl fmt::Debug for ServiceKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServiceKey")
            .field("file", &self.file)
            .field("email", &self.email)
            .finish_non_exhaustive()
    }
}

/// The file as Google hands it out. No `Debug`.
#[derive(Deserialize)]
struct KeyFile {
    #[serde(rename = "type", default)]
    kind: String,
    client_email: Option<String>,
    private_key: Option<String>,
    private_key_id: Option<String>,
    token_uri: Option<String>,
}

impl ServiceKey {
    /// Reads the file of a key. Blocking.
    pub fn read(file: &Path) -> Result<Self> {
        let mut text = String::new();
        let read = File::open(file).and_then(|file| file.take(KEY_FILE_BYTES_MAX).read_to_string(&mut text));
        read.map_err(|error| {
            Error::Invalid(format!(
                "{}: the key of the Google service account cannot be read: {error}",
                file.display()
            ))
        })?;
        Self::parse(file, &text)
    }

    fn parse(file: &Path, text: &str) -> Result<Self> {
        let wrong = |what: &str| {
            Error::Invalid(format!(
                "{}: {what}; in the Google Cloud console make a key of the type JSON for a service account, \
                 and give its file as it is",
                file.display()
            ))
        };
        // The parser's own words might quote the key.
        let key: KeyFile =
            serde_json::from_str(text).map_err(|_| wrong("is no JSON key of a service account"))?;
        if !key.kind.is_empty() && key.kind != "service_account" {
            return Err(wrong(&format!("is a key of the type {:?}, not service_account", key.kind)));
        }
        let email = key.client_email.ok_or_else(|| wrong("has no client_email"))?;
        let pem = Secret::new(key.private_key.ok_or_else(|| wrong("has no private_key"))?);
        let der = der_of(pem.expose()).ok_or_else(|| wrong("its private_key is no PEM of a private key"))?;
        let pair = RsaKeyPair::from_pkcs8(&der)
            .map_err(|_| wrong("its private_key is no RSA key in PKCS#8, or is damaged"))?;
        Ok(Self {
            file: file.to_owned(),
            email,
            key_id: key.private_key_id,
            token_url: key.token_uri.unwrap_or_else(|| TOKEN_URL.to_owned()),
            pair: Arc::new(pair),
        })
    }

    /// The account, with which sheets are shared.
    pub fn email(&self) -> &str {
        &self.email
    }

    fn claim(&self, audience: &str, now: Timestamp) -> Option<Secret> {
        let seconds = now.as_millis().div_euclid(1000);
        let head = match &self.key_id {
            Some(id) => json!({"alg": "RS256", "typ": "JWT", "kid": id}),
            None => json!({"alg": "RS256", "typ": "JWT"}),
        };
        let claims = json!({
            "iss": self.email, "scope": SCOPE, "aud": audience, "iat": seconds, "exp": seconds + CLAIM_SECONDS,
        });
        let encode = |part: &[u8]| URL_SAFE_NO_PAD.encode(part);
        let signed =
            format!("{}.{}", encode(head.to_string().as_bytes()), encode(claims.to_string().as_bytes()));
        let mut signature = vec![0; self.pair.public().modulus_len()];
        self.pair.sign(&RSA_PKCS1_SHA256, &SystemRandom::new(), signed.as_bytes(), &mut signature).ok()?;
        Some(Secret::new(format!("{signed}.{}", encode(&signature))))
    }
}

/// The bytes between the first two lines of dashes.
pub(super) fn der_of(pem: &str) -> Option<Vec<u8>> {
    let (_, rest) = pem.split_once("-----BEGIN PRIVATE KEY-----")?;
    let (body, _) = rest.split_once("-----END PRIVATE KEY-----")?;
    let letters: String = body.split_whitespace().collect();
    STANDARD.decode(letters).ok()
}

/// Gets tokens and keeps the one that holds.
pub(super) struct Auth {
    key: ServiceKey,
    token_url: String,
    http: HttpClient,
    clock: Arc<dyn Clock>,
    // Held while a token is got, so that one call renews and the others wait for it.
    token: Mutex<Option<Token>>,
}

struct Token {
    text: Secret,
    renew_at: Timestamp,
}

#[derive(Deserialize)]
struct TokenAnswer {
    access_token: String,
    expires_in: u64,
}

impl Auth {
    pub(super) fn new(options: &GoogleOptions, clock: Arc<dyn Clock>) -> Result<Self> {
        let key = options.key.clone();
        let token_url = options.token_url.clone().unwrap_or_else(|| key.token_url.clone());
        let http = longhaul_llm::plain_client(&token_url, options.answer_wait)?;
        Ok(Self { key, token_url, http, clock, token: Mutex::new(None) })
    }

    pub(super) fn email(&self) -> &str {
        &self.key.email
    }

    /// A token that holds.
    pub(super) async fn token(&self) -> Result<Secret, SinkError> {
        let mut kept = self.token.lock().await;
        if let Some(token) = kept.as_ref().filter(|token| self.clock.now() < token.renew_at) {
            return Ok(token.text.clone());
        }
        let token = self.renewed().await?;
        Ok(kept.insert(token).text.clone())
    }

    /// Google did not take this token: the next call gets another.
    pub(super) async fn forget(&self, text: &Secret) {
        let mut kept = self.token.lock().await;
        if kept.as_ref().is_some_and(|token| token.text == *text) {
            *kept = None;
        }
    }

    async fn renewed(&self) -> Result<Token, SinkError> {
        let now = self.clock.now();
        let claim = self.key.claim(&self.token_url, now).ok_or_else(|| {
            SinkError::Refused(format!("{}: nothing can be signed with this key", self.key.file.display()))
        })?;
        let form = form_urlencoded::Serializer::new(String::new())
            .append_pair("grant_type", GRANT)
            .append_pair("assertion", claim.expose())
            .finish();
        let request = self
            .http
            .post(&self.token_url)
            .header("content-type", "application/x-www-form-urlencoded")
            .body(form);
        let what = format!("Google's token service {}", self.token_url);
        let response = request.send().await.map_err(|error| {
            let timed_out = error.is_timeout();
            broken(&what, &error.without_url(), timed_out)
        })?;
        let body = client::body_of(response, &what).await.map_err(|failure| self.explained(failure))?;
        let answer: TokenAnswer = serde_json::from_slice(&body)
            .map_err(|_| outage(format!("{what} answered something that is no token"), None))?;
        let holds = Duration::from_secs(answer.expires_in).saturating_sub(RENEW_BEFORE);
        Ok(Token { text: Secret::new(answer.access_token), renew_at: now + holds })
    }

    fn explained(&self, failure: Failure) -> SinkError {
        match failure {
            Failure::Status { status: 400..=407 | 409..=428, words, .. } => SinkError::Refused(format!(
                "{}: Google does not accept this key of {} ({words}): it was deleted, its account is disabled, \
                 or the clock of this machine is wrong; make a new key in the Google Cloud console",
                self.key.file.display(),
                self.key.email
            )),
            other => other.explained(&self.key.email, "of any kind"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PEM: &str = include_str!("fake/key.pem");

    fn file(change: impl FnOnce(&mut serde_json::Value)) -> String {
        let mut file = json!({"type": "service_account", "client_email": "me@x.iam", "private_key": PEM});
        change(&mut file);
        file.to_string()
    }

    #[test]
    fn wrong_key_files_are_refused_by_name_and_show_no_key() {
        let secret_line = PEM.lines().nth(3).expect("a line of the key");
        let cases = [
            ("{".to_owned(), "is no JSON key"),
            (file(|file| file["type"] = json!("authorized_user")), "authorized_user"),
            (file(|file| file["client_email"] = json!(null)), "client_email"),
            (file(|file| file["private_key"] = json!(null)), "private_key"),
            (file(|file| file["private_key"] = json!(secret_line)), "no PEM"),
            (file(|file| file["private_key"] = json!(PEM.replace(secret_line, ""))), "damaged"),
            (file(|file| file["private_key"] = json!([secret_line])), "is no JSON key"),
        ];
        for (text, want) in cases {
            let error = ServiceKey::parse(Path::new("keys/sheets.json"), &text).expect_err(want);
            for shown in [error.to_string(), format!("{error:?}")] {
                assert!(shown.contains(want) && shown.contains("keys/sheets.json"), "{shown}");
                assert!(!shown.contains(secret_line), "{shown}");
            }
        }
        let missing = ServiceKey::read(Path::new("/nowhere/sheets.json")).expect_err("no file").to_string();
        assert!(missing.contains("/nowhere/sheets.json"), "{missing}");
    }

    #[test]
    fn a_key_shows_its_account_and_nothing_else() {
        let key = ServiceKey::parse(Path::new("sheets.json"), &file(|_| {})).expect("a key");
        let claim = key.claim("https://x/token", Timestamp::from_millis(1_800_000_000_000)).expect("a claim");
        let shown = format!("{key:?} {:?} {claim:?} {claim}", GoogleOptions::new(key.clone()));
        assert!(shown.contains("me@x.iam"));
        for line in PEM.lines().skip(2).chain([claim.expose()]) {
            assert!(!shown.contains(line), "{shown}");
        }
    }
}
