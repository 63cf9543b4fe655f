//! One profile from its settings. An error names the field and where it was set.

use std::collections::BTreeMap;

use anyhow::Result;
use longhaul_llm::ProfileSetup;
use longhaul_llm::profile::{Profile, ProviderKind, ProxyChoice, Secret};
use longhaul_llm::rate::{Engine, OutputCharge, RouteLimits};
use longhaul_sim::SimOptions;

use crate::config::{Origin, ProfileFields, environment, list};
use crate::exit::{Code, Failure};
use crate::keys::{self, Keys};
use crate::parse;

/// Reads a profile.
pub(super) fn read(name: &str, fields: &ProfileFields, stored: &Keys) -> Result<ProfileSetup> {
    let fields = Fields { name, fields };
    let kind = fields.required("provider", provider)?;
    let mut profile = Profile::new(name, kind);
    if let Some(url) = fields.get("base_url", parse::address)? {
        profile.base_url = url;
    }
    profile.model = fields.get("model", text)?;
    profile.key = fields.key(stored)?;
    // The built-in profiles are also used for servers that need no key.
    let chosen = fields.fields.get("key_env").filter(|(_, origin)| *origin != Origin::Default);
    profile.key_env = chosen.map(|(variable, _)| variable.clone());
    profile.headers = fields.get("headers", headers)?.unwrap_or_default();
    profile.proxy = fields.get("proxy", text)?.map_or(ProxyChoice::System, |url| match url.as_str() {
        "none" => ProxyChoice::Direct,
        _ => ProxyChoice::Url(Secret::new(url)),
    });
    profile.ca_file = fields.get("ca_file", text)?.map(Into::into);
    profile.timeouts.answer = fields.get("timeout", parse::duration)?.unwrap_or(profile.timeouts.answer);
    profile.batches = fields.get("batches", flag)?;
    let free = fields.get("local", flag)?.unwrap_or(false);
    Ok(ProfileSetup { limits: fields.limits(kind, free)?, profile, free })
}

/// The simulator's settings, for a profile that is one.
pub(super) fn sim_options(name: &str, fields: &ProfileFields) -> Result<SimOptions> {
    let fields = Fields { name, fields };
    let options = fields.get("sim", |text| serde_json::from_str(text))?;
    Ok(options.unwrap_or_default())
}

struct Fields<'a> {
    name: &'a str,
    fields: &'a ProfileFields,
}

impl Fields<'_> {
    fn get<T, E: ToString>(&self, field: &str, parse: impl Fn(&str) -> Result<T, E>) -> Result<Option<T>> {
        let Some((value, origin)) = self.fields.get(field) else { return Ok(None) };
        parse(value)
            .map(Some)
            .map_err(|problem| self.wrong(field, value, origin, &problem.to_string()).into())
    }

    fn required<T, E: ToString>(&self, field: &str, parse: impl Fn(&str) -> Result<T, E>) -> Result<T> {
        self.get(field, parse)?.ok_or_else(|| {
            Failure::new(Code::Config, format!("profiles.{}.{field} is missing", self.name)).into()
        })
    }

    /// How fast it may be asked. Providers differ in what they count.
    fn limits(&self, kind: ProviderKind, local: bool) -> Result<RouteLimits> {
        let slots = self.get("slots", number)?.map(|slots| usize::try_from(slots).unwrap_or(usize::MAX));
        Ok(RouteLimits {
            rpm: self.get("rpm", number)?,
            tpm: self.get("tpm", number)?,
            engine: if local || slots.is_some() { Engine::Local { slots } } else { Engine::Hosted },
            output_charge: match kind {
                ProviderKind::Anthropic => OutputCharge::Refunded,
                ProviderKind::Gemini => OutputCharge::Actual,
                ProviderKind::OpenAi | ProviderKind::Sim => OutputCharge::MaxTokens,
            },
            counts_cache_reads: kind != ProviderKind::Anthropic,
            ..RouteLimits::default()
        })
    }

    /// From the variable it names, the file it names, or the stored keys.
    fn key(&self, stored: &Keys) -> Result<Option<Secret>> {
        if let Some((variable, _)) = self.fields.get("key_env")
            && let Some(value) = environment(variable)
        {
            return Ok(Some(Secret::new(value)));
        }
        if let Some((path, _)) = self.fields.get("key_file") {
            return keys::read(path.as_ref()).map(Some);
        }
        stored.get(self.name)
    }

    fn wrong(&self, field: &str, value: &str, origin: &Origin, problem: &str) -> Failure {
        let text = format!("profiles.{}.{field} is {value:?} from {origin}: {problem}", self.name);
        Failure::new(Code::Config, text)
            .hint("see all settings and where they come from: longhaul config show")
    }
}

fn text(value: &str) -> Result<String, String> {
    if value.trim().is_empty() { Err("it is empty".to_owned()) } else { Ok(value.trim().to_owned()) }
}

fn number(value: &str) -> Result<u64, String> {
    value.parse().ok().filter(|number| *number > 0).ok_or_else(|| "expected a whole number from 1".to_owned())
}

fn flag(value: &str) -> Result<bool, String> {
    value.parse().map_err(|_| "expected true or false".to_owned())
}

fn provider(value: &str) -> Result<ProviderKind, String> {
    ProviderKind::from_name(value).ok_or_else(|| "expected openai, anthropic, gemini or sim".to_owned())
}

fn headers(value: &str) -> Result<BTreeMap<String, Secret>, String> {
    let header = |line: String| {
        let (name, value) = line.split_once(':').ok_or("expected a list such as [\"X-Team: search\"]")?;
        Ok((name.trim().to_owned(), Secret::new(value.trim())))
    };
    list(value).into_iter().map(header).collect()
}
