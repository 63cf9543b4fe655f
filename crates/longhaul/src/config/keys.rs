//! Every setting: its name, its default, what it means and what it may be.

use clap::ValueEnum as _;

use super::{
    address, concurrency, expected, lease, list, one_of, tag_budgets, tls_files, truth, value_bytes_max,
};
use crate::output::{Color, Format, TimeStyle};
use crate::parse;
use crate::progress::Style as ProgressStyle;

/// Where traces go.
pub(crate) const OTLP_URL: &str = "telemetry.otlp_url";
/// Name of this program in traces.
pub(crate) const SERVICE_NAME: &str = "telemetry.service_name";

/// A setting that exists.
pub(crate) struct Key {
    /// `section.key`.
    pub(crate) name: &'static str,
    /// In the form in which a person would write it.
    pub(crate) default: &'static str,
    /// What it means, for `config show` and `init`.
    pub(crate) about: &'static str,
    /// Refuses a value that it may not have.
    pub(super) check: fn(&str) -> Result<(), String>,
}

/// Every setting. `init` writes them, `config show` lists them, and anything else is refused by name.
pub(crate) const KEYS: [Key; 35] = [
    Key {
        name: "store.url",
        default: "sqlite://.longhaul/longhaul.db",
        about: "where jobs are kept: sqlite://PATH, redis://HOST, postgres://USER@HOST/DATABASE or memory://",
        check: |text| crate::store::parse_url(text).map(drop),
    },
    Key {
        name: "store.data",
        default: "sqlite://.longhaul/data.db",
        about: "where sheets and the like keep what is their own, beside a store that is a server: sqlite://PATH",
        check: |text| crate::store::parse_data(text).map(drop),
    },
    Key {
        name: "store.server",
        default: "",
        about: "a running server that commands talk to instead of opening the store, such as http://127.0.0.1:7788",
        check: |text| crate::store::parse_server(text).map(drop),
    },
    Key {
        name: "store.durability",
        default: "fsync",
        about: "fsync survives a power cut, relaxed survives a crash of the program",
        check: |text| one_of(text, &["fsync", "relaxed"]),
    },
    Key {
        name: "store.value_bytes_max",
        default: "1MB",
        about: "largest payload, checkpoint and result; at most 16MB",
        check: |text| value_bytes_max(text).map(drop),
    },
    Key {
        name: "output.format",
        default: "text",
        about: "text, json, jsonl or none",
        check: |text| {
            Format::from_str(text, false).map(drop).map_err(|_| expected("text, json, jsonl or none"))
        },
    },
    Key {
        name: "output.color",
        default: "auto",
        about: "auto, always or never",
        check: |text| Color::from_str(text, false).map(drop).map_err(|_| expected("auto, always or never")),
    },
    Key {
        name: "output.progress",
        default: "auto",
        about: "auto, bar, lines or none",
        check: |text| {
            ProgressStyle::from_str(text, false).map(drop).map_err(|_| expected("auto, bar, lines or none"))
        },
    },
    Key {
        name: "output.time",
        default: "auto",
        about: "auto, relative, iso or unix",
        check: |text| {
            TimeStyle::from_str(text, false).map(drop).map_err(|_| expected("auto, relative, iso or unix"))
        },
    },
    Key {
        name: "worker.queues",
        default: "default",
        about: "queues that `work` serves, the first comes first",
        check: |text| if list(text).is_empty() { Err(expected("at least one queue")) } else { Ok(()) },
    },
    Key {
        name: "worker.concurrency",
        default: "4",
        about: "jobs that `work --exec` runs at once; `work` without a command takes llm.concurrency unless this is set",
        check: |text| concurrency(text).map(drop),
    },
    Key {
        name: "worker.lease",
        default: "60s",
        about: "a worker that falls silent loses its jobs after this time",
        check: |text| lease(text).map(drop),
    },
    Key {
        name: "worker.grace",
        default: "30s",
        about: "how long a job may go on after a cancel, a time-out or the end of a drain",
        check: |text| parse::duration(text).map(drop),
    },
    Key {
        name: "server.address",
        default: "127.0.0.1:7788",
        about: "where `up` listens; beyond this machine it asks for tokens",
        check: |text| address(text).map(drop),
    },
    Key {
        name: "server.token",
        default: "auto",
        about: "when clients of the server need a token: auto (beyond this machine) or always (as behind a proxy)",
        check: |text| one_of(text, &["auto", "always"]),
    },
    Key {
        name: "server.hosts",
        default: "",
        about: "names under which the server is reached beside its address, such as jobs.example.org",
        check: |_| Ok(()),
    },
    Key {
        name: "server.origins",
        default: "",
        about: "web pages that may call the server, such as https://ops.example.org",
        check: |_| Ok(()),
    },
    Key {
        name: "server.tls",
        default: "",
        about: "certificate and key for a server that speaks TLS itself: CERT.pem,KEY.pem",
        check: |text| if text.is_empty() { Ok(()) } else { tls_files(text).map(drop) },
    },
    Key {
        name: "server.batches",
        default: "auto",
        about: "how batches of API clients are sent: sync (one by one), batch (provider batches), auto (provider batches where there are any)",
        check: |text| one_of(text, &["sync", "batch", "auto"]),
    },
    Key {
        name: "server.mcp_write",
        default: "false",
        about: "whether agents may change things over /mcp where no token is needed: true or false",
        check: |text| truth(text).map(drop),
    },
    Key {
        name: "llm.profile",
        default: "",
        about: "profile for commands that name none; empty: the one whose key is at hand",
        check: |_| Ok(()),
    },
    Key {
        name: "llm.bulk_strategy",
        default: "sync",
        about: "how `run` sends requests: sync (one by one), batch (provider batches), auto (cheapest in time)",
        check: |text| one_of(text, &["sync", "batch", "auto"]),
    },
    Key {
        name: "llm.concurrency",
        default: "256",
        about: "requests that `run` keeps under way at most; the rate control stays below",
        check: |text| concurrency(text).map(drop),
    },
    Key {
        name: "llm.batch_poll",
        default: "15s",
        about: "first wait between two looks at a provider batch; it grows to twenty times this",
        check: |text| parse::duration(text).map(drop),
    },
    Key {
        name: "llm.file",
        default: "",
        about: "where answers, spending and learnt limits are kept; empty: llm.db beside the store",
        check: |_| Ok(()),
    },
    Key {
        name: "llm.prices",
        default: "",
        about: "file with prices that go before the built-in ones",
        check: |_| Ok(()),
    },
    Key {
        name: "llm.cache_ttl",
        default: "30d",
        about: "how long an answer may be used again",
        check: |text| parse::duration(text).map(drop),
    },
    Key {
        name: "llm.cache_size",
        default: "1GB",
        about: "answers kept at most, in bytes",
        check: |text| parse::size(text).map(drop),
    },
    Key {
        name: "google.key_file",
        default: "",
        about: "key file of the service account that reads and writes Google sheets",
        check: |_| Ok(()),
    },
    Key {
        name: "google.base_url",
        default: "",
        about: "where Google's Sheets API is; empty for Google itself",
        check: |_| Ok(()),
    },
    Key {
        name: "google.token_url",
        default: "",
        about: "where Google gives out tokens; empty for what the key file says",
        check: |_| Ok(()),
    },
    Key {
        name: "budget.day",
        default: "",
        about: "most dollars spent a day (UTC); empty: no limit",
        check: |text| if text.is_empty() { Ok(()) } else { parse::money(text).map(drop) },
    },
    Key {
        name: "budget.tags",
        default: "",
        about: "most dollars spent under a tag, such as nightly=5,team=20",
        check: |text| tag_budgets(text).map(drop),
    },
    Key {
        name: OTLP_URL,
        default: "",
        about: "collector that traces are sent to (OTLP over HTTP), such as http://localhost:4318; empty: none",
        check: crate::telemetry::check_url,
    },
    Key {
        name: SERVICE_NAME,
        default: "longhaul",
        about: "name of this program in traces",
        check: |text| if text.trim().is_empty() { Err(expected("a name")) } else { Ok(()) },
    },
];
