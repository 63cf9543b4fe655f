//! `verify`.

use anyhow::{Result, bail};

use crate::app::App;
use crate::args::VerifyArgs;
use crate::exit::Code;

/// Runs the command.
#[expect(clippy::unused_async, reason = "the signature is what main calls; the body is yet to come")]
pub(crate) async fn run(_app: &App, args: &VerifyArgs) -> Result<Code> {
    bail!("this build has no verify yet ({args:?})")
}
