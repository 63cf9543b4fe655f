//! `demo`.

use anyhow::{Result, bail};

use crate::app::App;
use crate::args::DemoArgs;
use crate::exit::Code;

/// Runs the command.
#[expect(clippy::unused_async, reason = "the signature is what main calls; the body is yet to come")]
pub(crate) async fn run(_app: &App, args: &DemoArgs) -> Result<Code> {
    bail!("this build has no demo yet ({args:?})")
}
