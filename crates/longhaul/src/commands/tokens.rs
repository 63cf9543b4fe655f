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
            // Replacing it would lock somebody out who relies on it.
            if tokens.list()?.iter().any(|token| token.name == *name) {
                return Err(Failure::new(Code::Usage, format!("there is a token named {name} already"))
                    .hint(format!("choose another name, or remove it first: longhaul tokens rm {name}"))
                    .into());
            }
            let token = tokens.add(name, &scopes).context("storing the token")?;
            if let Err(error) = app.out.one(&json!({ "name": name, "token": token }), || token.clone()) {
                // A token that nobody has seen is of no use to anybody.
                tokens.remove(name).context("removing the token that could not be printed")?;
                return Err(error.context("the token could not be printed, so it was not kept"));
            }
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
            if tokens.is_empty() {
                app.out.note("there are no tokens; add one: longhaul tokens add NAME");
            }
        }
        TokensCommand::Rm { name } => {
            if !tokens.remove(name).context("removing the token")? {
                return Err(Failure::new(Code::NothingMatched, format!("there is no token {name}"))
                    .hint("list them with: longhaul tokens ls")
                    .into());
            }
            app.out.one(&json!({ "removed": name }), || format!("token {name} removed"))?;
        }
    }
    Ok(Code::Ok)
}

fn words(token: &Token) -> String {
    token.scopes.iter().map(|scope| scope.as_str()).collect::<Vec<_>>().join(" ")
}
