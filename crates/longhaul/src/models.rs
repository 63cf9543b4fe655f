//! From settings to models: profiles with their keys, the file that remembers, prices and budgets.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use longhaul_llm::cache::{Cache, CacheOptions};
use longhaul_llm::catalog::CatalogProfile;
use longhaul_llm::clock::SystemWallClock;
use longhaul_llm::file::LlmFile;
use longhaul_llm::price::{Prices, provider_of};
use longhaul_llm::profile::{Profile, ProviderKind, Secret};
use longhaul_llm::{Catalog, Llm, LlmOptions, ProfileSetup, Provider, Scope};
use longhaul_queue::Engine;
use longhaul_sim::{SimCore, SimProvider};

use crate::app::App;
use crate::args::SpendingArgs;
use crate::exit::{Code, Failure};
use crate::nearest::nearest;
use crate::sharing::{self, Sharing};
use crate::{keys, parse};

mod profiles;

/// The first wait between two looks at a batch, as the pipeline knows it.
const POLL_FIRST: Duration = Duration::from_secs(15);

/// A profile that nothing describes.
pub(crate) fn unknown_profile<'a>(name: &str, known: impl Iterator<Item = &'a String> + Clone) -> Failure {
    if name.contains([':', '/']) {
        return Failure::new(Code::Config, format!("there is no profile {name:?}"))
            .hint(format_args!("an address goes with --base-url, and begins with http:// or https://"));
    }
    let names: Vec<&str> = known.clone().map(String::as_str).collect();
    let meant = nearest(name, known.map(String::as_str));
    let meant = meant.map_or_else(String::new, |meant| format!("did you mean {meant}? "));
    Failure::new(Code::Config, format!("there is no profile {name:?}")).hint(format_args!(
        "{meant}there are {}; add one below [profiles.{name}] in longhaul.toml",
        names.join(", ")
    ))
}

/// The models as settings describe them.
pub(crate) struct Setup {
    profiles: BTreeMap<String, ProfileSetup>,
    /// Simulators in this process, by profile.
    simulators: BTreeMap<String, Arc<dyn Provider>>,
    /// Named by a flag, a setting or an address.
    named: Option<String>,
}

impl Setup {
    /// Reads the profiles, with keys. `base_url` is an address given on the command line.
    pub(crate) fn new(app: &App, base_url: Option<&str>) -> Result<Self> {
        let keys = keys::Keys::open();
        let (mut profiles, mut simulators) = (BTreeMap::new(), BTreeMap::new());
        for (name, fields) in app.settings.profiles() {
            let setup = profiles::read(name, fields, &keys)?;
            if setup.profile.provider == ProviderKind::Sim {
                let core =
                    SimCore::new(profiles::sim_options(name, fields)?).context("starting the simulator")?;
                simulators.insert(name.clone(), Arc::new(SimProvider::new(core)) as Arc<dyn Provider>);
            }
            profiles.insert(name.clone(), setup);
        }
        let named = match base_url {
            // The address is the profile's name, so that any worker can find it again.
            Some(url) => Some(url.to_owned()),
            None => Some(app.settings.get("llm.profile")?.value.clone()).filter(|name| !name.is_empty()),
        };
        if let Some(name) = &named
            && parse::address(name).is_err()
            && !profiles.contains_key(name)
        {
            return Err(unknown_profile(name, profiles.keys()).into());
        }
        Ok(Self { profiles, simulators, named })
    }

    /// Profiles with a key at hand.
    pub(crate) fn with_keys(&self) -> Vec<&str> {
        let with_key = self.profiles.iter().filter(|(_, setup)| setup.profile.key.is_some());
        with_key.map(|(name, _)| name.as_str()).collect()
    }

    /// The profile to use: the one named, or the only hosted one with a key.
    pub(crate) fn chosen(&self) -> Result<String> {
        if let Some(name) = &self.named {
            return Ok(name.clone());
        }
        match self.with_keys().as_slice() {
            [name] => Ok((*name).to_owned()),
            [] => {
                let unset = self.profiles.iter().filter_map(|(name, setup)| {
                    Some(format!(
                        "; {}, the key of profile {name}, is not set",
                        setup.profile.key_env.as_ref()?
                    ))
                });
                let unset: String = unset.collect();
                let text = format!("no provider is set up: there is no key for any profile{unset}");
                Err(Failure::new(Code::Config, text)
                    .hint(
                        "set OPENAI_API_KEY, ANTHROPIC_API_KEY or GEMINI_API_KEY, name a local engine with --profile ollama, \
                         or try without a model: --profile sim",
                    )
                    .into())
            }
            names => {
                Err(Failure::new(Code::Config, format!("several profiles have a key: {}", names.join(", ")))
                    .hint("name one: --profile NAME, or llm.profile in longhaul.toml")
                    .into())
            }
        }
    }

    /// The profile whose prices an estimate goes by: the one that would be used, or the one that prices the model. Profiles
    /// without a key get a placeholder, since providers ask for one before anything is sent, and nothing is.
    pub(crate) fn for_estimate(&mut self, app: &App, model: Option<&str>) -> Result<String> {
        let chosen = match (self.chosen(), model) {
            (Err(error), Some(model)) => {
                let prices = prices(app)?;
                let mut priced = self.profiles.iter().filter(|(_, setup)| {
                    let Profile { provider, base_url, .. } = &setup.profile;
                    let list = provider_of(provider.as_str(), base_url);
                    list.is_some_and(|list| prices.find(list, model).is_some())
                });
                priced.next().map(|(name, _)| name.clone()).ok_or(error)?
            }
            (chosen, _) => chosen?,
        };
        for setup in self.profiles.values_mut() {
            setup.profile.key.get_or_insert_with(|| Secret::new("estimate"));
        }
        Ok(chosen)
    }

    /// The models, with what they remember where there is something; nothing is made.
    pub(crate) fn llm_to_read(&self, app: &App) -> Result<Llm> {
        match &file_of(app)? {
            Some(path) if path.exists() => self.llm_at(app, path),
            Some(_) | None => self.llm_in_memory(app),
        }
    }

    /// What names of models mean to a server, which is asked for models of any profile.
    pub(crate) fn catalog(&self) -> Catalog {
        let profile = |(name, setup): (&String, &ProfileSetup)| CatalogProfile {
            name: name.clone(),
            dialect: setup.profile.provider.as_str().to_owned(),
            model: setup.profile.model.clone(),
            usable: setup.profile.is_usable(),
            local: setup.free,
            slashes: !setup.profile.is_at_the_service(),
        };
        Catalog { profiles: self.profiles.iter().map(profile).collect(), default_profile: self.chosen().ok() }
    }

    /// The model for requests that name none.
    pub(crate) fn model(&self, profile: &str, named: Option<&str>, needed: bool) -> Result<String> {
        let own = self.profiles.get(profile).and_then(|setup| setup.profile.model.clone());
        match (named.map(str::to_owned).or(own), needed) {
            (Some(model), _) => Ok(model),
            (None, false) => Ok(String::new()),
            (None, true) => {
                Err(Failure::new(Code::Usage, format!("no model is named, and profile {profile} has none"))
                    .hint(format_args!(
                        "add --model NAME; see what there is: longhaul models --profile {profile}"
                    ))
                    .into())
            }
        }
    }

    /// The models, with what they remember beside the store.
    pub(crate) fn llm(&self, app: &App) -> Result<Llm> {
        match &file_of(app)? {
            Some(path) => self.llm_at(app, path),
            None => self.llm_in_memory(app),
        }
    }

    /// The models, with what they remember in a file of the caller's.
    pub(crate) fn llm_at(&self, app: &App, path: &Path) -> Result<Llm> {
        self.with_file(app, LlmFile::open(path)?)
    }

    /// The models without a memory, for commands that ask nothing.
    pub(crate) fn llm_in_memory(&self, app: &App) -> Result<Llm> {
        let file = LlmFile::in_memory().context("opening a cache in memory")?;
        self.with_file(app, file)
    }

    fn with_file(&self, app: &App, file: LlmFile) -> Result<Llm> {
        let settings = &app.settings;
        let cache = CacheOptions {
            ttl: settings.read("llm.cache_ttl", parse::duration)?,
            bytes_max: settings.read("llm.cache_size", parse::size)? as u64,
        };
        let poll: Duration = settings.read("llm.batch_poll", parse::duration)?;
        Ok(Llm::new(LlmOptions {
            profiles: self.profiles.clone(),
            providers: self.simulators.clone(),
            cache: Cache::new(file.clone(), cache),
            file,
            prices: prices(app)?,
            clock: Arc::new(SystemWallClock),
            day_cap: settings.read("budget.day", |text| {
                if text.is_empty() { Ok(None) } else { parse::money(text).map(Some) }
            })?,
            poll_scale: poll.as_secs_f64() / POLL_FIRST.as_secs_f64(),
        }))
    }
}

/// Makes the ledger ready for whoever is about to spend: limits under tags that settings name are set, and what dead processes left
/// open is told as what may have been billed. Limits are shared with other processes for as long as the answer is kept.
pub(crate) async fn open_books(app: &App, engine: &Engine, llm: &Llm) -> Result<Sharing> {
    let left = llm.ledger().abandon_dead(app.now().as_millis()).await?;
    if left > 0 {
        let calls = crate::output::counted(left, "call");
        app.out.warn(format_args!("{calls} of a process that died may have been billed: longhaul costs"));
    }
    for (tag, money) in app.settings.read("budget.tags", crate::config::tag_budgets)? {
        llm.ledger().set_cap(&Scope::tag(&tag), Some(money)).await?;
    }
    Ok(sharing::start(engine, llm))
}

/// Notes what a run or a sheet may spend. What the command line does not name stays as it was.
pub(crate) async fn set_limits(llm: &Llm, id: &str, spending: &SpendingArgs) -> Result<()> {
    let SpendingArgs { max_cost, allow_unpriced } = *spending;
    Ok(llm.ledger().set_limits(&Scope::run(id), max_cost, allow_unpriced).await?)
}

/// Prices: a user's file over the built-in table.
pub(crate) fn prices(app: &App) -> Result<Prices> {
    let prices = Prices::built_in().context("reading the built-in prices")?;
    let path = &app.settings.get("llm.prices")?.value;
    if path.is_empty() {
        return Ok(prices);
    }
    let text = crate::small_file::read(path).map_err(|error| {
        Failure::new(Code::Config, format!("the price file {path} cannot be read: {error}"))
            .hint("llm.prices names it; leave it empty for the built-in prices")
    })?;
    let wrong = |error| Failure::new(Code::Config, format!("the price file {path} is wrong: {error}"));
    Ok(prices.overlay(&text).map_err(wrong)?)
}

/// Where the models keep what they remember; `None` beside a store in memory.
pub(crate) fn file_of(app: &App) -> Result<Option<PathBuf>> {
    let named = &app.settings.get("llm.file")?.value;
    if !named.is_empty() {
        return Ok(Some(PathBuf::from(named)));
    }
    Ok(crate::store::folder(&app.settings)?.map(|folder| folder.join("llm.db")))
}
