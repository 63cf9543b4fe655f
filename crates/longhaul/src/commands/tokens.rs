//! `tokens`: who may use the server from elsewhere.

use anyhow::{Context as _, Result};
use longhaul_server::Scope;
use longhaul_server::tokens::Token;
use serde_json::json;

use crate::app::App;
use crate::args::TokensCommand;
use crate::exit::{Code, Failure};
use crate::output::{Cell, Table};
use crate::server;

/// Runs the command.
pub(crate) fn run(app: &App, command: &TokensCommand) -> Result<Code> {
    let tokens = server::tokens(app)?;
    match command {
        TokensCommand::Add { name, scopes } => {
            let scopes: Vec<Scope> = scopes.iter().filter_map(|scope| Scope::named(scope)).collect();
            let scopes = if scopes.is_empty() { vec![Scope::Read, Scope::Enqueue] } else { scopes };
            let token = tokens.add(name, &scopes).context("storing the token")?;
            app.out.one(&json!({ "name": name, "token": token }), || token.clone())?;
            app.out.note("it is not shown again; a running server knows it at once");
        }
        TokensCommand::Ls => {
            let tokens = tokens.list()?;
            let shown: Vec<_> = tokens
                .iter()
                .map(|Token { name, scopes, .. }| json!({ "name": name, "scopes": scopes }))
                .collect();
            app.out.list(&shown, None, || {
                let mut table = Table::new(&["NAME", "SCOPES"]);
                for token in &tokens {
                    table.row(vec![Cell::new(&token.name), Cell::new(words(token))]);
                }
                table
            })?;
        }
        TokensCommand::Rm { name } => {
            if !tokens.remove(name).context("removing the token")? {
                return Err(Failure::new(Code::NothingMatched, format!("there is no token {name}"))
                    .hint("list them with: longhaul tokens ls")
                    .into());
            }
        }
    }
    Ok(Code::Ok)
}

fn words(token: &Token) -> String {
    token.scopes.iter().map(|scope| scope.as_str()).collect::<Vec<_>>().join(" ")
}
