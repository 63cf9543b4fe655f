//! Provider profiles: `[profiles.NAME]` in a settings file, or `LONGHAUL_PROFILES__NAME__FIELD`. Some are built in. They
//! name where a key is, never the key itself.

use std::collections::BTreeMap;

use anyhow::Result;

use super::{FileValues, Origin, wrong_name};

/// The section.
pub(super) const SECTION: &str = "profiles";

/// What a profile may say, and what it means.
const FIELDS: [(&str, &str); 15] = [
    ("provider", "the dialect: openai, anthropic, gemini or sim"),
    ("base_url", "its address"),
    ("model", "asked where neither a prompt nor --model names one"),
    ("key_env", "the variable that holds its key"),
    ("key_file", "the file that holds its key"),
    ("headers", "sent with each call"),
    ("proxy", "the way out; none for none"),
    ("ca_file", "certificates to trust besides the usual ones"),
    ("timeout", "for one answer"),
    ("rpm", "requests a minute"),
    ("tpm", "tokens a minute"),
    ("slots", "requests that a local engine answers at once"),
    ("local", "true: costs nothing"),
    ("batches", "whether it has a batch API"),
    ("sim", "the simulator's settings, as JSON"),
];

/// What a field means.
pub(crate) fn field_about(field: &str) -> &'static str {
    FIELDS.iter().find(|(name, _)| *name == field).map_or("", |(_, about)| about)
}

/// Profiles that need no settings: provider, address, where the key is.
const BUILT_IN: [(&str, &[(&str, &str)]); 6] = [
    ("openai", &[("provider", "openai"), ("key_env", "OPENAI_API_KEY")]),
    ("anthropic", &[("provider", "anthropic"), ("key_env", "ANTHROPIC_API_KEY")]),
    ("gemini", &[("provider", "gemini"), ("key_env", "GEMINI_API_KEY")]),
    ("ollama", &[("provider", "openai"), ("base_url", "http://127.0.0.1:11434/v1"), ("local", "true")]),
    ("llamacpp", &[("provider", "openai"), ("base_url", "http://127.0.0.1:8080/v1"), ("local", "true")]),
    ("sim", &[("provider", "sim"), ("model", "sim-small")]),
];

/// For `init`.
pub(super) const TEMPLATE: &str = "
# Provider profiles. openai, anthropic, gemini, ollama, llamacpp and sim are built in; their keys come from
# OPENAI_API_KEY, ANTHROPIC_API_KEY, GEMINI_API_KEY or `longhaul keys set NAME`.
# [profiles.mine]
# provider = \"openai\"                      # openai, anthropic, gemini or sim
# base_url = \"https://llm.example.com/v1\"
# model = \"my-model\"
# key_env = \"MY_KEY\"                       # or key_file = \"/run/secrets/my-key\"
# headers = [\"X-Team: search\"]
# proxy = \"http://proxy.example.com:3128\"
# ca_file = \"/etc/ssl/my-ca.pem\"
# timeout = \"10m\"                          # for one answer
# rpm = 600                                # requests a minute, and tpm for tokens; learnt where the provider tells
# slots = 4                                # requests that a local engine answers at once
# local = true                             # costs nothing
# batches = false                          # has no batch API
";

/// What a profile says, and where it says so.
pub(crate) type ProfileFields = BTreeMap<&'static str, (String, Origin)>;

/// Profiles by name.
pub(crate) type Profiles = BTreeMap<String, ProfileFields>;

/// Gathers the profiles: the environment over the file over what is built in.
pub(super) fn collect(env: &BTreeMap<String, String>, file: &FileValues) -> Result<Profiles> {
    let mut profiles = Profiles::new();
    for (name, fields) in BUILT_IN {
        let fields = fields.iter().map(|(field, value)| (*field, ((*value).to_owned(), Origin::Default)));
        profiles.insert(name.to_owned(), fields.collect());
    }
    if let Some((path, values)) = file {
        for (name, value) in values {
            if let Some((profile, field)) = split(name) {
                let fields = profiles.entry(profile.to_owned()).or_default();
                fields.insert(field, (value.clone(), Origin::File(path.clone())));
            }
        }
    }
    for (variable, value) in env {
        if let Some((profile, field)) = of_variable(variable) {
            let fields = profiles.entry(profile).or_default();
            fields.insert(field, (value.clone(), Origin::Env(variable.clone())));
        }
    }
    for (name, fields) in &profiles {
        if !fields.contains_key("provider") {
            let origin = fields.values().map(|(_, origin)| origin.to_string()).next().unwrap_or_default();
            let text = format!("the profile {name}, from {origin}, names no provider");
            let variable = format!("LONGHAUL_PROFILES__{}__PROVIDER=openai", name.to_uppercase());
            let hint = format!("add provider = \"openai\" below [profiles.{name}], or set {variable}");
            return Err(wrong_name(text, hint).into());
        }
    }
    Ok(profiles)
}

/// Whether `profiles.NAME.FIELD` is one that exists.
pub(super) fn is_field(name: &str) -> bool {
    split(name).is_some()
}

fn split(name: &str) -> Option<(&str, &'static str)> {
    let (profile, field) = name.strip_prefix(SECTION)?.strip_prefix('.')?.rsplit_once('.')?;
    Some((profile, FIELDS.iter().map(|(name, _)| *name).find(|known| *known == field)?))
}

/// The profile and field of a variable.
pub(super) fn of_variable(variable: &str) -> Option<(String, &'static str)> {
    let (profile, field) = variable.strip_prefix("LONGHAUL_PROFILES__")?.rsplit_once("__")?;
    let field = FIELDS.iter().map(|(name, _)| *name).find(|known| known.eq_ignore_ascii_case(field))?;
    Some((profile.to_lowercase(), field))
}
