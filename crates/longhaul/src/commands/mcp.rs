//! `mcp`: tools for agents over stdin and stdout. Nothing else may be printed there.

use std::io::ErrorKind;

use anyhow::{Context as _, Result};
use longhaul_server::ServerOptions;
use longhaul_server::mcp::{self, Access};

use crate::app::App;
use crate::args::McpArgs;
use crate::exit::Code;
use crate::server;
use crate::store::Missing;

/// Serves until the client closes its end.
pub(crate) async fn run(app: &App, args: &McpArgs) -> Result<Code> {
    // A client starts its servers with itself, in a new folder too, and asks them for hours: the store is made.
    let (engine, data) = app.engine_with_data(Missing::Create).await?;
    let (_, ctx) = server::open(app, (&engine, data), ServerOptions::default()).await?;
    let access = if args.allow_write { Access::WRITE } else { Access::READ };
    match mcp::serve(ctx, access, tokio::io::stdin(), tokio::io::stdout()).await {
        // A client that went away without a word is gone all the same.
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(Code::Ok),
        ended => ended.context("talking to the client").map(|()| Code::Ok),
    }
}
