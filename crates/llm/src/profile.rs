//! Where models are and how they are reached: what a user configures once under a name. Nothing here reads the
//! environment; whoever builds a profile looks keys up.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use sha2::{Digest, Sha256};

use crate::anthropic::Anthropic;
use crate::clock::{SystemWallClock, WallClock};
use crate::error::{Class, Error, Result};
use crate::gemini::Gemini;
use crate::openai::OpenAi;
use crate::provider::Provider;

/// Hexadecimal digits of a key's digest that name a route.
const KEY_DIGITS: usize = 12;

/// A dialect to speak.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ProviderKind {
    /// OpenAI, and all that speak its dialect: Ollama, llama.cpp, vLLM, OpenRouter.
    OpenAi,
    /// Anthropic.
    Anthropic,
    /// Gemini.
    Gemini,
    /// The simulator, in this process.
    Sim,
}

impl ProviderKind {
    /// Every kind, for tables.
    pub const ALL: [Self; 4] = [Self::OpenAi, Self::Anthropic, Self::Gemini, Self::Sim];

    /// Its name in settings and output.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::OpenAi => "openai",
            Self::Anthropic => "anthropic",
            Self::Gemini => "gemini",
            Self::Sim => "sim",
        }
    }

    /// The kind of that name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.as_str() == name)
    }

    /// The service's own address.
    pub const fn base_url(self) -> &'static str {
        match self {
            Self::OpenAi => "https://api.openai.com/v1",
            Self::Anthropic => "https://api.anthropic.com",
            Self::Gemini => "https://generativelanguage.googleapis.com",
            Self::Sim => "sim:",
        }
    }

    /// The environment variable that holds a key by custom.
    pub const fn key_variable(self) -> Option<&'static str> {
        match self {
            Self::OpenAi => Some("OPENAI_API_KEY"),
            Self::Anthropic => Some("ANTHROPIC_API_KEY"),
            Self::Gemini => Some("GEMINI_API_KEY"),
            Self::Sim => None,
        }
    }
}

impl fmt::Display for ProviderKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A text that never prints itself.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Keeps a text.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// The text, for the one place that sends it.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("…")
    }
}

impl fmt::Display for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("…")
    }
}

/// The way out to the network.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum ProxyChoice {
    /// As the system says; never for this very machine.
    #[default]
    System,
    /// None.
    Direct,
    /// This one: `http:`, `https:` or `socks5:`. It may hold a password.
    Url(Secret),
}

/// How long to wait for what.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timeouts {
    /// For a connection.
    pub connect: Duration,
    /// For a whole answer that is not streamed, and for the begin of one that is.
    pub answer: Duration,
    /// For the next piece of a stream or a file.
    pub silence: Duration,
    /// For a whole stream, upload or download.
    pub transfer: Duration,
}

impl Default for Timeouts {
    /// Ten minutes for an answer is what the official clients allow; long reasoning needs it.
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(10),
            answer: Duration::from_secs(600),
            silence: Duration::from_secs(120),
            transfer: Duration::from_secs(3600),
        }
    }
}

/// Models behind an address and a key, under a name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Profile {
    /// The user's name for it.
    pub name: String,
    /// The dialect it speaks.
    pub provider: ProviderKind,
    /// Where it is.
    pub base_url: String,
    /// The model to ask where a request names none. For callers: a provider sends what the request says.
    pub model: Option<String>,
    /// The key.
    pub key: Option<Secret>,
    /// The variable that its owner chose for the key. A profile with one is not asked without a key.
    pub key_env: Option<String>,
    /// Further headers of each call; they replace our own of the same name.
    pub headers: BTreeMap<String, Secret>,
    /// The way out.
    pub proxy: ProxyChoice,
    /// A file of further certificates to trust, in PEM.
    pub ca_file: Option<PathBuf>,
    /// How long to wait.
    pub timeouts: Timeouts,
    /// Most bytes of one answer.
    pub body_bytes_max: usize,
    /// Whether it has a batch API. Unset: the service's own address has one, others that speak OpenAI's dialect do not.
    pub batches: Option<bool>,
}

/// Most bytes of one answer, unless a profile says otherwise.
pub const BODY_BYTES_MAX: usize = 64 * 1024 * 1024;

impl Profile {
    /// The service itself, without a key.
    pub fn new(name: impl Into<String>, provider: ProviderKind) -> Self {
        Self {
            name: name.into(),
            provider,
            base_url: provider.base_url().to_owned(),
            model: None,
            key: None,
            key_env: None,
            headers: BTreeMap::new(),
            proxy: ProxyChoice::default(),
            ca_file: None,
            timeouts: Timeouts::default(),
            body_bytes_max: BODY_BYTES_MAX,
            batches: None,
        }
    }

    /// What limits and batches are bound to: `provider|base URL|digest of the key`. The name may change, and the same
    /// name may get another key, whose batches are not ours.
    pub fn route_identity(&self) -> String {
        let digest = self.key.as_ref().map(|key| Sha256::digest(key.expose().as_bytes()));
        let hex: String = digest.iter().flatten().map(|byte| format!("{byte:02x}")).collect();
        let base_url = self.base_url.trim_end_matches('/');
        format!("{}|{base_url}|{}", self.provider, hex.get(..KEY_DIGITS).unwrap_or("-"))
    }

    /// Whether it has a batch API.
    pub fn has_batches(&self) -> bool {
        self.batches.unwrap_or(self.is_at_the_service() || self.provider != ProviderKind::OpenAi)
    }

    /// Whether it leads to the maker's own service, not to a gateway or an engine that speaks its dialect.
    pub fn is_at_the_service(&self) -> bool {
        self.base_url.trim_end_matches('/') == self.provider.base_url()
    }

    /// Whether it can be asked: a key is at hand, or none is needed.
    pub fn is_usable(&self) -> bool {
        self.check_key().is_ok()
    }

    /// The services' own addresses take no call without a key: better told before the first one.
    fn check_key(&self) -> Result<()> {
        let usual = self.provider.key_variable().filter(|_| self.is_at_the_service());
        match self.key_env.as_deref().or(usual) {
            Some(variable) if self.key.is_none() => {
                let message = format!("profile {:?} has no key: {variable} is not set", self.name);
                Err(Error::new(Class::Auth, message))
            }
            _ => Ok(()),
        }
    }
}

/// Makes a provider of a profile. Nothing is sent yet.
pub fn connect(profile: &Profile) -> Result<Arc<dyn Provider>> {
    profile.check_key()?;
    let clock: Arc<dyn WallClock> = Arc::new(SystemWallClock);
    Ok(match profile.provider {
        ProviderKind::OpenAi => Arc::new(OpenAi::new(profile, clock)?),
        ProviderKind::Anthropic => Arc::new(Anthropic::new(profile, clock)?),
        ProviderKind::Gemini => Arc::new(Gemini::new(profile, clock)?),
        // The simulator has settings of its own, which a profile does not carry.
        ProviderKind::Sim => {
            return Err(Error::new(
                Class::BadRequest,
                "the simulator is made from its own settings, not from a profile",
            ));
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_never_prints_itself() {
        let mut profile = Profile::new("p", ProviderKind::OpenAi);
        profile.key = Some(Secret::new("sk-hidden"));
        profile.headers.insert("x-team".to_owned(), Secret::new("sk-hidden"));
        profile.proxy = ProxyChoice::Url(Secret::new("http://me:sk-hidden@proxy"));
        let key = profile.key.clone().expect("it was given one");
        for text in [format!("{profile:?}"), format!("{key}"), format!("{key:?}"), profile.route_identity()] {
            assert!(!text.contains("hidden"), "{text}");
        }
    }

    #[test]
    fn a_route_is_provider_address_and_key() {
        let mut profile = Profile::new("p", ProviderKind::Gemini);
        assert_eq!(profile.route_identity(), "gemini|https://generativelanguage.googleapis.com|-");
        profile.key = Some(Secret::new("abc"));
        profile.base_url.push('/');
        assert_eq!(profile.route_identity(), "gemini|https://generativelanguage.googleapis.com|ba7816bf8f01");
    }

    #[test]
    fn a_key_is_missed_before_the_first_call() {
        for kind in [ProviderKind::OpenAi, ProviderKind::Anthropic, ProviderKind::Gemini] {
            let mut profile = Profile::new("p", kind);
            assert!(!profile.is_usable());
            let error = connect(&profile).map(drop).unwrap_err();
            assert_eq!(error.class, Class::Auth);
            assert!(error.message.contains(kind.key_variable().expect("a service has one")), "{error}");
            profile.key = Some(Secret::new("k"));
            assert_eq!(connect(&profile).expect("it has a key").caps().dialect, kind.as_str());
        }
        let mut local = Profile::new("local", ProviderKind::OpenAi);
        local.base_url = "http://localhost:11434".to_owned();
        assert!(local.is_usable() && Profile::new("sim", ProviderKind::Sim).is_usable());
        assert_eq!(connect(&local).expect("a local one needs no key").caps().batches, None);
        assert!(connect(&Profile::new("sim", ProviderKind::Sim)).is_err());
    }

    #[test]
    fn what_cannot_be_an_address_or_header_is_told() {
        let profile =
            Profile { base_url: "http://local".to_owned(), ..Profile::new("p", ProviderKind::OpenAi) };
        let cases = [
            Profile { base_url: "ftp://x".to_owned(), ..profile.clone() },
            Profile { base_url: "no address".to_owned(), ..profile.clone() },
            Profile { key: Some(Secret::new("line\nbreak")), ..profile.clone() },
            Profile {
                headers: BTreeMap::from([("bad name".to_owned(), Secret::new("x"))]),
                ..profile.clone()
            },
            Profile { proxy: ProxyChoice::Url(Secret::new("::")), ..profile.clone() },
            Profile { ca_file: Some("does/not/exist.pem".into()), ..profile.clone() },
        ];
        for wrong in cases {
            let error = connect(&wrong).map(drop).unwrap_err();
            assert_eq!(error.class, Class::BadRequest);
            assert!(error.message.contains("profile \"p\""), "{error}");
            assert!(!error.message.contains("line"), "{error}");
        }
    }

    #[test]
    fn kinds_have_names() {
        for kind in ProviderKind::ALL {
            assert_eq!(ProviderKind::from_name(kind.as_str()), Some(kind));
        }
        assert_eq!(ProviderKind::from_name("other"), None);
    }
}
