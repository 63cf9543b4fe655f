//! The laboratory: instruments that measure Longhaul ([`bench`]) and break it on purpose ([`verify`]), on stores of their own.
//! No part of the product needs them.
//!
//! An instrument starts the program that it is part of again, as `work`, `up`, `bench --child` or `verify child`. It answers
//! with values; the program prints them.

use std::fmt::Display;
use std::io;

use longhaul_stores::sqlite::SqliteOptions;
use tokio::process::Command;

pub mod bench;
mod scratch;
mod server_space;
mod servers;
pub mod verify;

pub use scratch::Scratch;

/// What an instrument needs of the program that it is part of.
pub struct Host {
    /// The store that the command line names. Without one, an instrument works on files of its own.
    pub store: Option<String>,
    /// How SQLite files are opened.
    pub sqlite: SqliteOptions,
    /// Has a process end with this one, even if this one is killed.
    pub die_with_parent: fn(&mut Command),
    /// Tells people what goes on.
    pub note: Box<dyn Fn(&str) + Send + Sync>,
}

impl Host {
    fn note(&self, text: impl Display) {
        (self.note)(&text.to_string());
    }
}

/// Why an instrument does not begin.
#[derive(Debug, thiserror::Error)]
pub enum Refusal {
    /// What was asked for makes no sense.
    #[error("{text}")]
    Usage {
        /// What is wrong.
        text: String,
        /// What to do about it.
        hint: Option<&'static str>,
    },
    /// A server is to be started that is not installed.
    #[error("{program} cannot be started: {error}")]
    NotInstalled {
        /// What could not be started.
        program: &'static str,
        /// The package that has it.
        package: &'static str,
        /// Why.
        error: io::Error,
    },
}

impl Refusal {
    fn usage(text: impl Into<String>, hint: &'static str) -> Self {
        Self::Usage { text: text.into(), hint: Some(hint) }
    }

    /// What to do about it.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Usage { hint, .. } => hint.map(str::to_owned),
            Self::NotInstalled { package, .. } => {
                Some(format!("install it, such as with: apt-get install {package}"))
            }
        }
    }
}
