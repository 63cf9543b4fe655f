//! Settings: flag, then `LONGHAUL_SECTION__KEY`, then the settings file, then the default. Each value remembers where
//! it came from, and an error about it says so. This is the only file that reads the environment for settings.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use anyhow::Result;
use clap::ValueEnum;
use longhaul_llm::NanoUsd;
use serde::Serialize;

use crate::exit::{Code, Failure};
use crate::parse;

mod keys;
mod profiles;

pub(crate) use keys::{KEYS, Key, OTLP_URL, SERVICE_NAME};
pub(crate) use profiles::{ProfileFields, Profiles, field_about as profile_field_about};

/// Where settings files are looked for when none is named.
const FILES: [&str; 2] = ["longhaul.toml", ".longhaul/config.toml"];

/// Where to listen.
pub(crate) fn address(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| expected("an address and a port, such as 127.0.0.1:7788"))
}

/// Yes or no.
pub(crate) fn truth(text: &str) -> Result<bool, String> {
    text.parse().map_err(|_| expected("true or false"))
}

/// A certificate and its key.
pub(crate) fn tls_files(text: &str) -> Result<(PathBuf, PathBuf), String> {
    match list(text).as_slice() {
        [certificate, key] => Ok((certificate.into(), key.into())),
        _ => Err(expected("two files: CERT.pem,KEY.pem")),
    }
}

/// Where a value came from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Origin {
    /// A flag.
    Flag(&'static str),
    /// An environment variable.
    Env(String),
    /// A settings file.
    File(PathBuf),
    /// Built in.
    Default,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Flag(flag) => f.write_str(flag),
            Self::Env(name) => f.write_str(name),
            Self::File(path) => write!(f, "{}", path.display()),
            Self::Default => f.write_str("default"),
        }
    }
}

impl Serialize for Origin {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// A setting's value.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Setting {
    /// `section.key`.
    pub(crate) key: &'static str,
    /// As written.
    pub(crate) value: String,
    /// Where it came from.
    pub(crate) origin: Origin,
}

/// All settings of this run.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    values: Vec<Setting>,
    profiles: Profiles,
}

/// A setting given as a flag: key, flag, value.
pub(crate) type Flag = (&'static str, &'static str, String);

impl Settings {
    /// Reads the settings file and the environment, and puts `flags` on top.
    pub(crate) fn load(flags: &[Flag], config: Option<&Path>) -> Result<Self> {
        let env = std::env::vars_os()
            .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)));
        Self::resolve(flags, &env.collect(), &read_file(config)?)
    }

    fn resolve(flags: &[Flag], env: &BTreeMap<String, String>, file: &FileValues) -> Result<Self> {
        check_names(env, file)?;
        let mut values = Vec::with_capacity(KEYS.len());
        for key in &KEYS {
            let setting = pick(key, flags, env, file);
            (key.check)(&setting.value).map_err(|problem| wrong_value(&setting, &problem))?;
            values.push(setting);
        }
        Ok(Self { values, profiles: profiles::collect(env, file)? })
    }

    /// Provider profiles, built-in ones included.
    pub(crate) fn profiles(&self) -> &Profiles {
        &self.profiles
    }

    /// All of them, in the order of [`KEYS`].
    pub(crate) fn all(&self) -> &[Setting] {
        &self.values
    }

    /// One of them.
    pub(crate) fn get(&self, name: &str) -> Result<&Setting> {
        let found = self.values.iter().find(|setting| setting.key == name);
        found.ok_or_else(|| anyhow::anyhow!("there is no setting {name}; this is a bug"))
    }

    /// The value of one that was given as a flag.
    pub(crate) fn flag(&self, name: &str) -> Result<Option<&str>> {
        let setting = self.get(name)?;
        Ok(matches!(setting.origin, Origin::Flag(_)).then_some(setting.value.as_str()))
    }

    /// One of them, read with the parser that has checked it before.
    pub(crate) fn read<T>(&self, name: &str, parse: impl FnOnce(&str) -> Result<T, String>) -> Result<T> {
        let setting = self.get(name)?;
        parse(&setting.value).map_err(|problem| wrong_value(setting, &problem).into())
    }

    /// One of them that is a choice.
    pub(crate) fn choice<T: ValueEnum>(&self, name: &str) -> Result<T> {
        self.read(name, |text| T::from_str(text, false))
    }
}

/// Values of a settings file by `section.key`, with the file's name.
type FileValues = Option<(PathBuf, BTreeMap<String, String>)>;

fn pick(key: &Key, flags: &[Flag], env: &BTreeMap<String, String>, file: &FileValues) -> Setting {
    let found = |value: &str, origin| Setting { key: key.name, value: value.to_owned(), origin };
    if let Some((_, flag, value)) = flags.iter().find(|(name, _, _)| *name == key.name) {
        return found(value, Origin::Flag(flag));
    }
    let variable = variable_of(key.name);
    if let Some(value) = env.get(&variable) {
        return found(value, Origin::Env(variable));
    }
    if let Some((path, value)) = file.as_ref().and_then(|(path, values)| Some((path, values.get(key.name)?)))
    {
        return found(value, Origin::File(path.clone()));
    }
    found(key.default, Origin::Default)
}

fn variable_of(key: &str) -> String {
    format!("LONGHAUL_{}", key.replace('.', "__").to_uppercase())
}

fn read_file(named: Option<&Path>) -> Result<FileValues> {
    let path = match named {
        Some(path) => path.to_owned(),
        None => match FILES.iter().map(PathBuf::from).find(|path| path.is_file()) {
            Some(path) => path,
            None => return Ok(None),
        },
    };
    let text = crate::small_file::read(&path).map_err(|error| {
        Failure::new(Code::Config, format!("the settings file {} cannot be read: {error}", path.display()))
            .hint("write one with longhaul init, or name another with --config FILE")
    })?;
    let values = flatten(&text).map_err(|problem| {
        Failure::new(Code::Config, format!("the settings file {} is wrong: {problem}", path.display()))
            .hint("see every setting and its form: longhaul init writes a commented example")
    })?;
    Ok(Some((path, values)))
}

/// `section.key` to text; lists become comma-separated, as in the environment.
fn flatten(text: &str) -> Result<BTreeMap<String, String>, String> {
    let table: toml::Table =
        text.parse().map_err(|error: toml::de::Error| error.to_string().trim().to_owned())?;
    let mut values = BTreeMap::new();
    for (section, content) in &table {
        let toml::Value::Table(keys) = content else {
            return Err(format!(
                "`{section}` stands outside of a section; write it below a line such as [store]"
            ));
        };
        for (key, value) in keys {
            if let (profiles::SECTION, toml::Value::Table(fields)) = (section.as_str(), value) {
                for (field, value) in fields {
                    let name = format!("{section}.{key}.{field}");
                    let text = as_text(value)
                        .ok_or_else(|| format!("`{name}` must be a text, a number or a list of texts"))?;
                    values.insert(name, text);
                }
                continue;
            }
            values.insert(
                format!("{section}.{key}"),
                as_text(value).ok_or_else(|| {
                    format!("`{section}.{key}` must be a text, a number or a list of texts")
                })?,
            );
        }
    }
    Ok(values)
}

fn as_text(value: &toml::Value) -> Option<String> {
    match value {
        toml::Value::String(text) => Some(text.clone()),
        toml::Value::Integer(number) => Some(number.to_string()),
        toml::Value::Boolean(flag) => Some(flag.to_string()),
        toml::Value::Array(items) => {
            items.iter().map(toml::Value::as_str).collect::<Option<Vec<_>>>().map(|items| items.join(","))
        }
        toml::Value::Float(_) | toml::Value::Datetime(_) | toml::Value::Table(_) => None,
    }
}

/// A misspelt setting would otherwise be ignored in silence.
fn check_names(env: &BTreeMap<String, String>, file: &FileValues) -> Result<()> {
    let known = |name: &str| KEYS.iter().any(|key| key.name == name);
    let names = || format!("there are {}, and [profiles.NAME]", KEYS.map(|key| key.name).join(", "));
    if let Some((path, values)) = file
        && let Some(name) = values.keys().find(|name| !known(name) && !profiles::is_field(name))
    {
        let text = format!("`{name}` in {} is not a setting", path.display());
        return Err(wrong_name(text, names()).into());
    }
    for name in env.keys().filter(|name| name.starts_with("LONGHAUL_") && name.contains("__")) {
        if !KEYS.iter().any(|key| variable_of(key.name) == *name) && profiles::of_variable(name).is_none() {
            let text = format!("the environment variable {name} is not a setting");
            return Err(wrong_name(text, names()).into());
        }
    }
    Ok(())
}

fn wrong_name(text: String, hint: String) -> Failure {
    Failure::new(Code::Config, text).hint(hint)
}

fn wrong_value(setting: &Setting, problem: &str) -> Failure {
    let code = if matches!(setting.origin, Origin::Flag(_)) { Code::Usage } else { Code::Config };
    let value = crate::store::shown(&setting.value);
    let text = format!("{} is {value:?} from {}: {problem}", setting.key, setting.origin);
    Failure::new(code, text).hint("see all settings and where they come from: longhaul config show")
}

fn expected(what: &str) -> String {
    format!("expected {what}")
}

fn one_of(text: &str, words: &[&str]) -> Result<(), String> {
    if words.contains(&text) { Ok(()) } else { Err(expected(&words.join(" or "))) }
}

/// A variable that a setting names, such as the one with a key.
pub(crate) fn environment(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// The whole environment, of which commands get a part.
pub(crate) fn variables() -> Vec<(OsString, OsString)> {
    std::env::vars_os().collect()
}

/// The caller's trace, by the convention that commands hand it on.
pub(crate) fn traceparent() -> Option<String> {
    environment("TRACEPARENT")
}

/// Whether colours are unwanted, by the convention.
pub(crate) fn no_color() -> bool {
    environment("NO_COLOR").is_some()
}

/// The user's configuration folder.
pub(crate) fn user_folder() -> Option<PathBuf> {
    let base = environment("XDG_CONFIG_HOME").map(PathBuf::from);
    let base = base.or_else(|| environment("HOME").map(|home| PathBuf::from(home).join(".config")));
    base.map(|base| base.join("longhaul"))
}

/// Comma-separated names.
pub(crate) fn list(text: &str) -> Vec<String> {
    text.split(',').map(str::trim).filter(|name| !name.is_empty()).map(str::to_owned).collect()
}

/// Jobs at once.
pub(crate) fn concurrency(text: &str) -> Result<u32, String> {
    let max = u32::try_from(longhaul_queue::limits::CLAIM_MAX).unwrap_or(u32::MAX);
    text.parse()
        .ok()
        .filter(|number| (1..=max).contains(number))
        .ok_or_else(|| expected(&format!("1 to {max}")))
}

/// Limits on spending by tag.
pub(crate) fn tag_budgets(text: &str) -> Result<Vec<(String, NanoUsd)>, String> {
    let budget = |item: String| {
        let (tag, money) =
            item.split_once('=').ok_or_else(|| expected("TAG=DOLLARS, separated by commas"))?;
        Ok((tag.trim().to_owned(), parse::money(money.trim())?))
    };
    list(text).into_iter().map(budget).collect()
}

/// A lease shorter than a second is lost to any hiccup.
pub(crate) fn lease(text: &str) -> Result<std::time::Duration, String> {
    let lease = parse::duration(text)?;
    if lease < std::time::Duration::from_secs(1) { Err(expected("at least 1s")) } else { Ok(lease) }
}

/// Largest payload, checkpoint and result.
pub(crate) fn value_bytes_max(text: &str) -> Result<usize, String> {
    let size = parse::size(text)?;
    let max = longhaul_queue::limits::VALUE_BYTES_MAX;
    if (1..=max).contains(&size) { Ok(size) } else { Err(expected("at most 16MB")) }
}

/// A settings file with every setting at its default, commented out.
pub(crate) fn template() -> String {
    let mut text = "# Longhaul settings. Flags and LONGHAUL_SECTION__KEY come before this file.\n".to_owned();
    let mut section = "";
    for key in &KEYS {
        let (in_section, name) = key.name.split_once('.').unwrap_or(("", key.name));
        if in_section != section {
            section = in_section;
            text += &format!("\n[{section}]\n");
        }
        text += &format!("# {}\n# {name} = {:?}\n", key.about, key.default);
    }
    text += profiles::TEMPLATE;
    text
}

#[cfg(test)]
mod tests;
