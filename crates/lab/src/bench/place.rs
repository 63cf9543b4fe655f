//! Where jobs are kept while they are measured: a fresh file at one of the levels of durability, or a fresh corner of a server.

use std::path::PathBuf;
use std::sync::{MutexGuard, PoisonError};

use anyhow::{Context as _, Result};
use longhaul_queue::Engine;
use longhaul_stores::StoreUrl;
use longhaul_stores::sqlite::{Durability, SqliteOptions};
use reqwest::Url;
use serde::{Deserialize, Serialize};
use tracing::warn;

use super::Bench;
use super::raw::{self, Postgres, Raw, Redis, Sqlite};
use crate::Refusal;
use crate::server_space::{self, bare_url, with_parameter};

/// What is measured.
#[derive(Debug)]
pub(super) enum Target {
    /// Files in a folder of the benchmark.
    Files,
    /// A Redis server.
    Redis(Url),
    /// A database of a Postgres server.
    Postgres(Url),
}

impl Target {
    /// The store of this URL; files of its own where that is no server.
    pub(super) fn of(url: &str) -> Result<Self> {
        let kind = match url.parse::<StoreUrl>()? {
            StoreUrl::Sqlite(_) | StoreUrl::Memory => return Ok(Self::Files),
            StoreUrl::Redis(_) => Self::Redis,
            StoreUrl::Postgres(_) => Self::Postgres,
        };
        let url = Url::parse(url).context("the store's URL")?;
        let encrypts = |(name, value): (_, _)| name == "sslmode" && value != "disable" && value != "prefer";
        if url.scheme() == "rediss" || url.query_pairs().any(encrypts) {
            let text = "the raw limit of a server is measured over plain connections only";
            let hint = "use a URL without TLS, or measure a server of its own: longhaul bench --own redis";
            return Err(Refusal::usage(text, hint).into());
        }
        Ok(kind(url))
    }

    pub(super) fn levels(&self) -> &'static [Level] {
        match self {
            Self::Files => &[Level::Relaxed, Level::Fsync],
            Self::Redis(_) => &[Level::Redis],
            Self::Postgres(_) => &[Level::Postgres],
        }
    }

    /// For what is measured at one level only.
    pub(super) fn first_level(&self) -> Level {
        match self {
            Self::Files => Level::Relaxed,
            Self::Redis(_) => Level::Redis,
            Self::Postgres(_) => Level::Postgres,
        }
    }
}

/// What a figure is about: a level of durability of files, or a server with its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Level {
    Relaxed,
    Fsync,
    Redis,
    Postgres,
}

impl Level {
    /// As the table shows it.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Relaxed => "relaxed",
            Self::Fsync => "fsync",
            Self::Redis => "redis",
            Self::Postgres => "postgres",
        }
    }

    pub(super) fn is_server(self) -> bool {
        matches!(self, Self::Redis | Self::Postgres)
    }
}

/// A store of its own for one measurement; a worker process opens the same.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Place {
    pub(super) level: Level,
    /// As `--store` takes it.
    pub(super) url: String,
    /// What nobody else on the server is called.
    name: String,
}

impl Bench<'_> {
    /// A fresh place at the level of what is measured at one only.
    pub(super) fn first_place(&self) -> Result<Place> {
        self.place(self.target.first_level())
    }

    /// A fresh place.
    pub(super) fn place(&self, level: Level) -> Result<Place> {
        let name = format!("bench_{:016x}", fastrand::u64(..));
        let url = match &self.target {
            Target::Files => format!("sqlite://{}/{name}/bench.db", self.folder.path().display()),
            Target::Redis(server) => with_parameter(server, "name", &name),
            // The raw connections are plain ones.
            Target::Postgres(server) => {
                with_parameter(&Url::parse(&with_parameter(server, "sslmode", "disable"))?, "schema", &name)
            }
        };
        if let Target::Files = self.target {
            std::fs::create_dir(self.folder.path().join(&name)).context("making a folder")?;
        }
        let place = Place { level, url, name };
        self.open_places().push(place.clone());
        Ok(place)
    }

    /// Frees what a place took.
    pub(super) async fn discard(&self, place: Place) -> Result<()> {
        place.discard().await?;
        self.open_places().retain(|open| open.name != place.name);
        Ok(())
    }

    /// Frees what is left after a run that was cut off, as far as that can be done.
    pub(super) async fn discard_all(&self) {
        let left = std::mem::take(&mut *self.open_places());
        for place in left {
            if let Err(error) = place.discard().await {
                warn!(%error, name = place.name, "what a benchmark has left on the server must be removed by hand");
            }
        }
    }

    fn open_places(&self) -> MutexGuard<'_, Vec<Place>> {
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Place {
    /// The engine on it.
    pub(super) async fn engine(&self) -> Result<Engine> {
        let durability = if self.level == Level::Fsync { Durability::Fsync } else { Durability::Relaxed };
        let options = SqliteOptions { durability, ..SqliteOptions::default() };
        Ok(Engine::new(longhaul_stores::connect(&self.url.parse()?, options).await?))
    }

    /// The bare store, without the engine.
    pub(super) async fn raw(&self) -> Result<Box<dyn Raw>> {
        Ok(match self.level {
            Level::Relaxed | Level::Fsync => {
                Box::new(Sqlite::open(&self.file()?, self.level == Level::Fsync)?)
            }
            Level::Redis => Box::new(Redis::open(&self.redis()?, &self.prefix()).await?),
            Level::Postgres => Box::new(Postgres::open(&bare_url(&self.url)?, &self.name).await?),
        })
    }

    /// Lets a server come to rest after a load.
    pub(super) async fn rest(&self) -> Result<()> {
        if self.level == Level::Postgres {
            let client = server_space::postgres(&self.url).await?;
            raw::come_to_rest(&client, &format!("{}.lh_jobs", self.name)).await?;
        }
        Ok(())
    }

    /// What its jobs take: the file, the server's memory, or the tables with their indexes.
    pub(super) async fn bytes(&self) -> Result<f64> {
        #[expect(clippy::cast_precision_loss, reason = "sizes are far below 2^52")]
        Ok(match self.level {
            Level::Relaxed | Level::Fsync => std::fs::metadata(self.file()?)?.len() as f64,
            Level::Redis => {
                let mut connection = self.redis()?.get_multiplexed_async_connection().await?;
                let info: String = redis::cmd("INFO").arg("memory").query_async(&mut connection).await?;
                let used =
                    info.lines().find_map(|line| line.strip_prefix("used_memory:")?.trim().parse().ok());
                used.context("the server does not say how much memory it uses")?
            }
            Level::Postgres => {
                let sql = "SELECT sum(pg_total_relation_size(oid))::bigint FROM pg_class
                    WHERE relnamespace = $1::text::regnamespace AND relkind = 'r'";
                let size: i64 =
                    server_space::postgres(&self.url).await?.query_one(sql, &[&self.name]).await?.get(0);
                size as f64
            }
        })
    }

    async fn discard(&self) -> Result<()> {
        match self.level {
            Level::Relaxed | Level::Fsync => {
                // A leftover is removed with the whole folder at the end.
                let _ = self.file()?.parent().map(std::fs::remove_dir_all);
            }
            Level::Redis => server_space::discard_keys(&self.url, &self.name).await?,
            Level::Postgres => server_space::discard_schema(&self.url, &self.name).await?,
        }
        Ok(())
    }

    fn file(&self) -> Result<PathBuf> {
        Ok(PathBuf::from(self.url.strip_prefix("sqlite://").context("a place that is no file")?))
    }

    /// Of all keys, the store's and raw ones.
    fn prefix(&self) -> String {
        server_space::key_prefix(&self.name)
    }

    fn redis(&self) -> Result<redis::Client> {
        Ok(redis::Client::open(bare_url(&self.url)?)?)
    }
}
