//! Which model a name means. Clients name models as their own provider does, or with a profile before it: `ollama/llama3.2`.

use serde::Serialize;

/// Longest name of a model. Calls are booked by it, and a longer one failed there, as if the provider could not be reached.
pub const MODEL_BYTES_MAX: usize = 256;

/// Letters in which a name differs that was probably meant; more would take a maker's name for a profile's.
const SLIP_LETTERS_MAX: usize = 1;

/// The profiles that a client may use.
#[derive(Debug, Clone, Default)]
pub struct Catalog {
    /// Profiles in the order in which they are looked at.
    pub profiles: Vec<CatalogProfile>,
    /// For names that nothing else tells of.
    pub default_profile: Option<String>,
}

/// A profile as names are looked up in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CatalogProfile {
    /// Its name.
    pub name: String,
    /// `openai`, `anthropic`, `gemini` or `sim`.
    pub dialect: String,
    /// Its own model, if it names one.
    pub model: Option<String>,
    /// Whether it can be asked: a key is at hand, or none is needed.
    pub usable: bool,
    /// Whether it is an engine of one's own, which has models of any maker: a maker's prefix does not lead to it.
    pub local: bool,
    /// Whether names of its models may have slashes, `vendor/model`: those of gateways and self-hosted engines do, those of a
    /// maker's own service do not.
    pub slashes: bool,
}

impl CatalogProfile {
    /// Whether a model of this profile can be called so.
    fn can_have(&self, model: &str) -> bool {
        let in_folder = GEMINI_FOLDERS.iter().any(|folder| model.starts_with(folder));
        self.slashes || !model.contains('/') || (self.dialect == "gemini" && in_folder)
    }
}

/// How names begin that Gemini's own service has slashes in.
const GEMINI_FOLDERS: [&str; 2] = ["models/", "tunedModels/"];

/// A model of a profile.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize)]
pub struct Chosen {
    /// The profile.
    pub profile: String,
    /// The model, as its provider names it.
    pub model: String,
}

/// Why a name means no model.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// The text of a field cannot be the name of a model.
    #[error("{text}")]
    Invalid {
        /// The field.
        field: String,
        /// What is wrong with it.
        text: String,
    },
    /// No profile has a model of this name.
    #[error("{0}")]
    NoModel(String),
    /// There is no profile of this name.
    #[error("{0}")]
    NoProfile(String),
}

impl NameError {
    /// A word for programs, which never changes.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Invalid { .. } | Self::NoProfile(_) => "invalid",
            Self::NoModel(_) => "model_not_found",
        }
    }

    /// The field that is wrong.
    pub fn field(&self) -> &str {
        match self {
            Self::Invalid { field, .. } => field,
            Self::NoModel(_) => "model",
            Self::NoProfile(_) => "profile",
        }
    }
}

/// How models of a maker are named, and the dialect that its own API speaks.
const MAKERS: [(&str, &str); 10] = [
    ("claude-", "anthropic"),
    ("gemini-", "gemini"),
    ("gpt-", "openai"),
    ("chatgpt-", "openai"),
    ("o1", "openai"),
    ("o3", "openai"),
    ("o4", "openai"),
    ("text-embedding-", "openai"),
    ("text-moderation-", "openai"),
    ("sim-", "sim"),
];

impl Catalog {
    /// The model that a name means: `PROFILE/MODEL`, the model that a profile names, a maker's by its prefix, or one of the default
    /// profile, in this order.
    pub fn resolve(&self, name: &str) -> Result<Chosen, NameError> {
        check_model("model", name)?;
        let chosen = |profile: &CatalogProfile, model: &str| {
            Ok(Chosen { profile: profile.name.clone(), model: model.to_owned() })
        };
        if let Some((profile, model)) = name.split_once('/') {
            if let Some(profile) = self.profiles.iter().find(|known| known.name == profile) {
                return chosen(profile, model);
            }
            // Gateways and engines have models of any maker, `org/model`: there only a likely typo is refused.
            if let Some(meant) = self.misspelt(profile) {
                return Err(NameError::NoModel(format!(
                    "there is no profile {profile:?}; did you mean {meant}/{model}?"
                )));
            }
        }
        let mut usable = self.profiles.iter().filter(|profile| profile.usable);
        if let Some(profile) = usable.clone().find(|profile| profile.model.as_deref() == Some(name)) {
            return chosen(profile, name);
        }
        let maker = MAKERS.iter().find(|(prefix, _)| name.starts_with(prefix));
        if let Some((_, dialect)) = maker {
            // The profile of the maker's own name goes before others that speak its dialect, such as a proxy.
            let own = usable.clone().find(|profile| profile.name == *dialect && profile.can_have(name));
            let speaks = |profile: &&CatalogProfile| {
                profile.dialect == *dialect && !profile.local && profile.can_have(name)
            };
            if let Some(profile) = own.or_else(|| usable.find(speaks)) {
                return chosen(profile, name);
            }
        }
        let default =
            self.profiles.iter().find(|profile| Some(&profile.name) == self.default_profile.as_ref());
        match default.filter(|profile| profile.can_have(name)) {
            Some(profile) => chosen(profile, name),
            None => Err(self.unknown(name)),
        }
    }

    /// The profile and model of a call that may name both. A profile's own model stands in for one that is not named.
    pub fn choose(&self, profile: Option<&str>, name: &str) -> Result<Chosen, NameError> {
        // Who names nothing gets the default profile with its own model, if it has one.
        let default = self.default_profile.as_deref().filter(|_| name.is_empty());
        let Some(profile) = profile.or(default) else { return self.resolve(name) };
        let Some(known) = self.profiles.iter().find(|known| known.name == profile) else {
            let names = self.profiles.iter().map(|known| known.name.as_str()).collect::<Vec<_>>().join(", ");
            let text = match self.misspelt(profile) {
                Some(meant) => format!("there is no profile {profile:?}; did you mean {meant}?"),
                None => format!("there is no profile {profile:?}; there are {names}"),
            };
            return Err(NameError::NoProfile(text));
        };
        let model = match (name, &known.model) {
            ("", Some(own)) => own,
            _ => name,
        };
        check_model("model", model)?;
        Ok(Chosen { profile: profile.to_owned(), model: model.to_owned() })
    }

    /// The profile whose name has one letter more, less, swapped or changed.
    fn misspelt(&self, name: &str) -> Option<&str> {
        let given = name.to_lowercase();
        let near = |known: &&str| strsim::osa_distance(&given, &known.to_lowercase()) <= SLIP_LETTERS_MAX;
        self.profiles.iter().map(|known| known.name.as_str()).find(near)
    }

    /// The dialect that a profile speaks.
    pub fn dialect_of(&self, profile: &str) -> Option<&str> {
        self.profiles.iter().find(|known| known.name == profile).map(|known| known.dialect.as_str())
    }

    fn unknown(&self, name: &str) -> NameError {
        let usable: Vec<&str> = self
            .profiles
            .iter()
            .filter(|profile| profile.usable)
            .map(|profile| profile.name.as_str())
            .collect();
        NameError::NoModel(format!(
            "no provider for model {name:?}: write PROFILE/MODEL with one of the profiles {}, or set a key for its provider",
            usable.join(", ")
        ))
    }
}

/// Refuses what cannot be the name of a model, before it is stored or looked for.
pub fn check_model(field: &str, name: &str) -> Result<(), NameError> {
    let text = match name.len() {
        0 => format!("{field} is empty: name one, such as sim-small"),
        bytes if bytes > MODEL_BYTES_MAX => {
            format!("{field} has {bytes} bytes, at most {MODEL_BYTES_MAX} are possible")
        }
        _ => return Ok(()),
    };
    Err(NameError::Invalid { field: field.to_owned(), text })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn profile(name: &str, dialect: &str, usable: bool) -> CatalogProfile {
        CatalogProfile {
            name: name.to_owned(),
            dialect: dialect.to_owned(),
            model: None,
            usable,
            local: name == "ollama",
            slashes: name == "ollama",
        }
    }

    #[test]
    fn names_lead_to_profiles() {
        let mut mine = profile("mine", "openai", true);
        mine.model = Some("llama3.2".to_owned());
        let profiles = vec![
            profile("anthropic", "anthropic", false),
            profile("ollama", "openai", true),
            mine,
            profile("openai", "openai", true),
            profile("sim", "sim", true),
        ];
        let catalog = Catalog { profiles, default_profile: Some("ollama".to_owned()) };
        let rows = [
            ("ollama/qwen3", "ollama", "qwen3"),
            ("openai/org/model", "openai", "org/model"),
            ("llama3.2", "mine", "llama3.2"),
            ("gpt-5-mini", "openai", "gpt-5-mini"),
            ("sim-small", "sim", "sim-small"),
            ("claude-sonnet-5", "ollama", "claude-sonnet-5"),
            ("nobody/knows", "ollama", "nobody/knows"),
        ];
        for (name, profile, model) in rows {
            let chosen = catalog.resolve(name).expect(name);
            assert_eq!((chosen.profile.as_str(), chosen.model.as_str()), (profile, model), "{name}");
        }
        for (name, meant) in [("opnai/gpt-5", "openai/gpt-5"), ("Sim/sim-small", "sim/sim-small")] {
            let error = catalog.resolve(name).expect_err("a slip of the pen").to_string();
            assert!(error.contains(&format!("did you mean {meant}?")), "{error}");
        }
        let error = catalog.choose(Some("ollma"), "qwen3").expect_err("a slip of the pen");
        assert_eq!((error.code(), error.field()), ("invalid", "profile"));
        assert!(error.to_string().contains("did you mean ollama?"), "{error}");
        let hosted = Catalog { default_profile: Some("openai".to_owned()), ..catalog.clone() };
        for name in ["nobody/knows", "gpt-5/x", "sim-small/x", "models/gemini-3"] {
            let error = hosted.resolve(name).expect_err("no profile, and no service has such names");
            assert_eq!((error.code(), error.field()), ("model_not_found", "model"), "{name}");
            assert!(error.to_string().contains("mine, openai, sim"), "{error}");
        }
        let mut folders = hosted.clone();
        folders.profiles.push(profile("gemini", "gemini", true));
        folders.default_profile = Some("gemini".to_owned());
        assert_eq!(folders.resolve("models/gemini-3").expect("a name").profile, "gemini");
        assert!(folders.resolve("nobody/knows").is_err());
        let bare = Catalog { default_profile: None, ..catalog };
        let error = bare.resolve("claude-sonnet-5").expect_err("no key, no default");
        assert_eq!(error.code(), "model_not_found");
        let text = error.to_string();
        assert!(text.contains("mine") && !text.contains("anthropic"), "{text}");
        let empty = bare.resolve("").expect_err("empty");
        assert_eq!((empty.code(), empty.field()), ("invalid", "model"));
    }
}
