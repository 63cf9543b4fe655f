//! Runs of prompts with the real binary over real sockets: `longhaul run` in one process, `longhaul sim serve` in another, and
//! where a moment has to be hit, a relay between them that stops there.

mod relay;
pub(crate) mod sim;

mod batch;
mod consume;
mod embed;
mod faults;
mod full_disk;
mod inputs;
mod keys;
mod local;
mod money;
mod money_table;
mod outage;
mod runs;
mod submission;
mod sync;
