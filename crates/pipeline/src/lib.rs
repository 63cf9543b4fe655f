//! What every pipeline shares. A pipeline is a crate of its own that knows no other; the rest of the program knows it by
//! [`Pipeline`], and its pieces of work by [`Runs`].

pub mod addresses;
pub mod data;
mod error;
pub mod expected;
pub mod job_name;
pub mod json_check;
pub mod numbered;
pub mod own_names;
pub mod pipeline;
pub mod private_file;
pub mod run;
pub mod runs;
pub mod secrets;
pub mod serve;
pub mod table_files;
#[cfg(feature = "testing")]
pub mod testing;
pub mod unit_jobs;
pub mod uploads;
pub mod watch;
pub mod webhooks;

pub use error::{Error, Result};
pub use own_names::OwnNames;
pub use pipeline::{About, FailedUnit, Listener, Part, Pipeline, Results, Retry};
pub use run::hold::Hold;
pub use run::status::{RunState, Standing, Status, Units};
pub use run::{Run, RunId};
pub use runs::{Found, Runs};
pub use uploads::Uploads;
pub use watch::FollowedRun;
